"""The denoising loop. It knows velocity(x, t, rows) and nothing about networks, prompts or rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.flow.transitions import Density, Kind, transition

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]  # x [M, ...], t [M], rows [M] long -> [M, ...]


@dataclass(frozen=True)
class Plan:
    """How the samples of a batch are denoised."""

    times: Tensor  # [N + 1] falling from 1 to 0
    kind: Kind
    noise: float  # noise level of the stochastic steps
    stochastic: Tensor  # [B, N] bool, the same number K of steps in every row
    density: Density = "gaussian"
    group: Tensor | None = None  # [B] long: rows of a group start alike and share forwards until noise parts them


@dataclass(frozen=True)
class Trajectory:
    """K recorded steps of every sample and where it ended."""

    latents: Tensor  # [B, ...]
    state: Tensor  # [B, K, ...]
    next_state: Tensor  # [B, K, ...]
    time: Tensor  # [B, K]
    time_next: Tensor  # [B, K]
    logprob: Tensor  # [B, K]


def denoise(velocity: Velocity, x: Tensor, plan: Plan, noise_at: Callable[[int], Tensor]) -> Trajectory:
    """Carry noise to pictures, recording the stochastic steps.

    Args:
        velocity: predicted eps - x_0 for some rows of the batch.
        x: [B, ...] standard normal start.
        plan: times, kind of noise, and which steps of which rows are stochastic.
        noise_at: fresh standard normal noise [B, ...] for a step; asked only for steps where some row is stochastic.
    """
    batch, steps = plan.stochastic.shape
    recorded = int(plan.stochastic[0].sum()) if batch else 0
    assert (plan.stochastic.sum(1) == recorded).all(), "rows record different numbers of steps"
    x = x.float()
    state = x.new_zeros(batch, recorded, *x.shape[1:])
    next_state = torch.zeros_like(state)
    time, time_next, logprob = (x.new_zeros(batch, recorded) for _ in range(3))
    slot = torch.zeros(batch, dtype=torch.long)
    for i in range(steps):
        v = _predict(velocity, x, plan, i)
        t, t_next = float(plan.times[i]), float(plan.times[i + 1])
        rows = plan.stochastic[:, i].nonzero().flatten()
        moved = transition("ode", v, x, plan.times[i], plan.times[i + 1], noise=0.0, t_max=float(plan.times[1])).mean
        if len(rows):
            where = rows.to(x.device)
            part = transition(plan.kind, v[where], x[where], plan.times[i], plan.times[i + 1],
                              noise=plan.noise, t_max=float(plan.times[1]))  # fmt: skip
            landed = part.sample(noise_at(i)[rows].to(x.device))
            at = (where, slot[rows].to(x.device))
            state[at], next_state[at] = x[where], landed
            time[at], time_next[at] = t, t_next
            logprob[at] = part.logprob(landed, plan.density)
            moved[where] = landed
            slot[rows] += 1
        x = moved
    return Trajectory(x, state, next_state, time, time_next, logprob)


def _predict(velocity: Velocity, x: Tensor, plan: Plan, i: int) -> Tensor:
    """The velocity at step i, asked once for rows that are still the same state."""
    rows = torch.arange(len(x))
    times = plan.times[i].to(x.device)
    if plan.group is None:
        return velocity(x, times.expand(len(x)), rows)
    parted = plan.stochastic[:, :i].any(1)
    # parted samples stand for themselves, the others for their whole group
    label = torch.where(parted, rows, len(x) + plan.group)
    _, source = torch.unique(label, return_inverse=True)
    first = torch.full((int(source.max()) + 1,), len(x), dtype=torch.long)
    first.scatter_reduce_(0, source, rows, "amin")
    v = velocity(x[first.to(x.device)], times.expand(len(first)), first)
    return v[source.to(x.device)]
