"""How far the policy's predictions have grown away from the reference's: a sign of collapse before pictures show it."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.base import Metrics
from burnish.flow.times import diffuse
from burnish.tasks.flow.roles import FlowRoles
from burnish.types.batch import to_device
from burnish.types.rollout import Scored
from burnish.utils import random

ROWS = 16  # samples that are looked at: few, as their forwards teach nothing
TIME = 0.5  # where both picture and noise are to be guessed


def watched(places: Tensor, total: int) -> Tensor:
    """Which of some samples are looked at: rows [M], by their places [B] long among all ``total`` of the batch."""
    stride = max(total // ROWS, 1)
    return ((places % stride == 0) & (places < stride * ROWS)).nonzero().flatten()


def velocity_growth(roles: FlowRoles, some: Scored, size: int) -> Metrics:
    """Norm of the policy's velocity over the reference's, and the norm of their difference over the reference's.

    Both are means over the samples, noised again halfway, ``size`` in a forward; nothing where there is no reference.
    """
    if not roles.has_reference or not len(some):
        return {}
    clean = to_device(some.trace.latents, roles.device)
    keys: list[tuple[random.Part, ...]] = [
        (some.seed, "growth", some.update, prompt.uid, sample)
        for prompt, sample in zip(some.prompts, some.sample.tolist(), strict=True)
    ]
    noise = to_device(random.normal(clean.shape[1:], keys), clean.device)
    time = clean.new_full((len(some),), TIME)
    noisy = diffuse(clean, noise, time, to_device(some.trace.noised, clean.device))
    rows = [slice(start, start + size) for start in range(0, len(some), size)]
    found = []
    for name in ("policy", "reference"):
        with roles.sampling(name, merge=False) as role:
            given = (
                (noisy[part], time[part], some.trace.conditioning.select(part), some.trace.unconditional.select(part))
                for part in rows
            )
            found.append(torch.cat([role(*one) for one in given]).flatten(1))
    policy, reference = found
    norm = reference.norm(dim=1)
    return {
        "actor/velocity_norm_ratio": float((policy.norm(dim=1) / norm).mean()),
        "actor/velocity_distance": float(((policy - reference).norm(dim=1) / norm).mean()),
    }
