"""How far the policy's predictions have grown away from the reference's: a sign of collapse before pictures show it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from burnish.algorithms.base import Metrics
from burnish.flow.times import diffuse
from burnish.tasks.flow.roles import FlowRoles
from burnish.types.batch import Gathered, to_device
from burnish.types.rollout import Conditioning, Scored
from burnish.utils import random

ROWS = 16  # samples that are looked at: few, as their forwards teach nothing
TIME = 0.5  # where both picture and noise are to be guessed


def watched(places: Tensor, total: int) -> Tensor:
    """Which of some samples are looked at: rows [M], by their places [B] long among all ``total`` of the batch."""
    stride = max(total // ROWS, 1)
    return ((places % stride == 0) & (places < stride * ROWS)).nonzero().flatten()


def velocity_growth(roles: FlowRoles, some: Scored | None, size: int) -> Metrics:
    """Norm of the policy's velocity over the reference's, and the norm of their difference over the reference's.

    Both are means over the samples, noised again halfway, ``size`` in a forward; nothing where there is no reference.
    Ranks that hold the networks together gather one after the other, and so does a rank that has no samples.
    """
    if not roles.has_reference:
        return {}
    there = some if some is not None and len(some) else None
    if there is None and not roles.shards.networks:
        return {}
    rows = [] if there is None else list(_noised(roles, there, size))
    found = []
    for name in ("policy", "reference"):
        with roles.sampling(name, merge=False) as role:
            found.append([role(*one) for one in rows])
    if not rows:
        return {}
    policy, reference = (torch.cat(made).flatten(1) for made in found)
    norm = reference.norm(dim=1)
    return {
        "actor/velocity_norm_ratio": float((policy.norm(dim=1) / norm).mean()),
        "actor/velocity_distance": float(((policy - reference).norm(dim=1) / norm).mean()),
    }


def _noised(roles: FlowRoles, some: Scored, size: int) -> Iterator[tuple[Tensor, Tensor, Gathered[Conditioning]]]:
    """What a network is asked for: final states that are noised again, ``size`` at a time."""
    clean = to_device(some.trace.latents, roles.device)
    keys: list[tuple[random.Part, ...]] = [
        (some.seed, "growth", some.update, prompt.uid, sample)
        for prompt, sample in zip(some.prompts, some.sample.tolist(), strict=True)
    ]
    noise = to_device(random.normal(clean.shape[1:], keys), clean.device)
    time = torch.full((len(some),), TIME)
    noisy = diffuse(clean, noise, to_device(time, clean.device), to_device(some.trace.noised, clean.device))
    for start in range(0, len(some), size):
        part = slice(start, start + size)
        yield noisy[part], time[part], some.trace.conditioning.select(part)
