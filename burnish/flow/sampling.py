"""The denoising loop and guidance, as functions of velocities: no networks, prompts or rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from burnish.flow.solvers import Multistep, heun
from burnish.flow.transitions import Density, Kind, transition
from burnish.options.flow import Solver
from burnish.types.batch import to_device

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]  # x [M, ...], t [M], rows [M] long -> [M, ...]


@dataclass(frozen=True)
class Plan:
    """How the samples of a batch are denoised."""

    times: Tensor  # [N + 1] decreasing from 1 to 0
    kind: Kind
    noise: float  # noise level of the recorded steps
    recorded: Tensor  # [B, N] bool, the same number K of steps in every row; the others are deterministic
    density: Density = "gaussian"
    solver: Solver = "euler"  # of the steps without noise
    branch: Tensor | None = None  # [B, N + 1] long: rows with equal ids at step i share its state, computed once

    def select(self, rows: slice) -> Plan:
        """The plan of some rows."""
        branch = None if self.branch is None else self.branch[rows]
        return replace(self, recorded=self.recorded[rows], branch=branch)


@dataclass(frozen=True)
class Trajectory:
    """K recorded steps of every sample, and its final latents."""

    latents: Tensor  # [B, ...]
    state: Tensor  # [B, K, ...]
    next_state: Tensor  # [B, K, ...]
    time: Tensor  # [B, K], in the CPU's memory
    time_next: Tensor  # [B, K], as well
    logprob: Tensor  # [B, K]; 0 where the steps have no noise


def denoise(
    velocity: Velocity, x: Tensor, plan: Plan, noise_at: Callable[[int], Tensor], *, share: Tensor | None = None
) -> Trajectory:
    """Denoise from pure noise, and record the steps that are trained on.

    Args:
        velocity: predicts eps - x_0 for some rows of the batch.
        x: [B, ...] standard normal start; equal in rows of one branch.
        plan: times, kind of noise, and which steps of which rows are recorded.
        noise_at: fresh standard normal noise [B, ...] for a step, equal in rows that share a branch after it; called
            only for steps that are stochastic in some row.
        share: [B] of a state's elements that are noised; None is all.
    """
    batch, steps = plan.recorded.shape
    share = x.new_ones(batch) if share is None else share
    recorded = int(plan.recorded[0].sum()) if batch else 0
    assert (plan.recorded.sum(1) == recorded).all(), "rows record different numbers of steps"
    x = x.float()
    state = x.new_zeros(batch, recorded, *x.shape[1:])
    next_state = torch.zeros_like(state)
    logprob = x.new_zeros(batch, recorded)
    times = plan.times.tolist()
    time, time_next = (
        starts[:-1].expand(batch, -1)[plan.recorded].view(batch, recorded).clone()
        for starts in (plan.times, plan.times.roll(-1))
    )
    here = _recorded(plan.recorded, x.device)
    t_max, solver = times[1], Multistep()
    for i in range(steps):
        v = _predict(velocity, x, plan, i, torch.arange(batch))
        noisy = plan.recorded[:, i] & (plan.kind != "ode")
        moved = transition("ode", v, x, times[i], times[i + 1], noise=0.0, t_max=t_max).mean
        if plan.solver == "dpm2m":
            moved = moved + solver.correction(x, v, plan.times[i], plan.times[i + 1], restart=noisy)
        elif plan.solver == "heun" and times[i + 1] > 0 and not noisy.all():
            still = (~noisy).nonzero().flatten()
            there = to_device(still, x.device)
            second = _predict(velocity, moved, plan, i + 1, still)
            moved[there] = moved[there] + heun(v[there], second, plan.times[i], plan.times[i + 1])
        if (at := here[i]) is not None:
            where = at[0]
            state[at] = x[where]
            if plan.kind != "ode":
                step = transition(
                    plan.kind, v[where], x[where], times[i], times[i + 1],
                    noise=plan.noise, t_max=t_max, share=share[where],
                )  # fmt: skip
                landed = step.sample(to_device(noise_at(i)[plan.recorded[:, i]], x.device))
                logprob[at] = step.logprob(landed, plan.density)
                moved[where] = landed
            next_state[at] = moved[where]
        x = moved
    return Trajectory(x, state, next_state, time, time_next, logprob)


def _recorded(recorded: Tensor, device: torch.device) -> list[tuple[Any, Any] | None]:
    """By step, the rows that are recorded [R] and the places of their states [R]: moved to the device at once."""
    chosen = recorded.T.nonzero()  # by step, then by row
    place = recorded.cumsum(1).T[recorded.T] - 1
    rows, places = to_device(torch.stack([chosen[:, 1], place]), device)
    counts = recorded.sum(0).tolist()
    parts = zip(rows.split(counts), places.split(counts), strict=True)
    return [part if count else None for part, count in zip(parts, counts, strict=True)]


def _predict(velocity: Velocity, x: Tensor, plan: Plan, i: int, rows: Tensor) -> Tensor:
    """The velocity of some rows [M] of x [B, ...] at the i-th time, computed once per branch: [M, ...]."""
    times = plan.times[i]
    if plan.branch is None:
        given = x if len(rows) == len(x) else x[to_device(rows, x.device)]
        return velocity(given, times.expand(len(rows)), rows)
    _, source = torch.unique(plan.branch[rows, i], return_inverse=True)
    first = torch.full((int(source.max()) + 1,), len(x), dtype=torch.long)
    first.scatter_reduce_(0, source, rows, "amin")
    v = velocity(x[to_device(first, x.device)], times.expand(len(first)), first)
    return v[to_device(source, x.device)]


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: unconditional + scale * (conditional - unconditional).

    In the space of clean samples it is the same formula, since x_0 is linear in v.

    Args:
        conditional, unconditional: [M, ...] velocities.
        scale: 1 is no guidance.
    """
    return unconditional + scale * (conditional - unconditional)
