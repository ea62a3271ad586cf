"""The denoising loop. It knows velocity(x, t, rows) and nothing about networks, prompts or rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish.flow.multistep import Multistep, Solver
from burnish.flow.transitions import Density, Kind, transition
from burnish.types.batch import to_device

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]  # x [M, ...], t [M], rows [M] long -> [M, ...]


@dataclass(frozen=True)
class Plan:
    """How the samples of a batch are denoised."""

    times: Tensor  # [N + 1] falling from 1 to 0
    kind: Kind
    noise: float  # noise level of the recorded steps
    recorded: Tensor  # [B, N] bool, the same number K of steps in every row; all others are deterministic
    density: Density = "gaussian"
    solver: Solver = "euler"  # of the deterministic steps
    node: Tensor | None = None  # [B, N + 1] long: rows with equal numbers at i are one state there, computed once

    def select(self, rows: slice) -> Plan:
        """That of some rows."""
        return replace(self, recorded=self.recorded[rows], node=None if self.node is None else self.node[rows])


@dataclass(frozen=True)
class Trajectory:
    """K recorded steps of every sample and where it ended."""

    latents: Tensor  # [B, ...]
    state: Tensor  # [B, K, ...]
    next_state: Tensor  # [B, K, ...]
    time: Tensor  # [B, K]
    time_next: Tensor  # [B, K]
    logprob: Tensor  # [B, K]; 0 where the steps have no noise


def denoise(velocity: Velocity, x: Tensor, plan: Plan, noise_at: Callable[[int], Tensor]) -> Trajectory:
    """Carry noise to pictures, recording the steps that are learned from.

    Args:
        velocity: predicted eps - x_0 for some rows of the batch.
        x: [B, ...] standard normal start; equal in rows that are one state.
        plan: times, kind of noise, and which steps of which rows are recorded.
        noise_at: fresh standard normal noise [B, ...] for a step, equal in rows that are one state after it; asked
            only for steps where some row is noisy.
    """
    batch, steps = plan.recorded.shape
    recorded = int(plan.recorded[0].sum()) if batch else 0
    assert (plan.recorded.sum(1) == recorded).all(), "rows record different numbers of steps"
    x = x.float()
    state = x.new_zeros(batch, recorded, *x.shape[1:])
    next_state = torch.zeros_like(state)
    time, time_next, logprob = (x.new_zeros(batch, recorded) for _ in range(3))
    slot = torch.zeros(batch, dtype=torch.long)
    t_max, solver = float(plan.times[1]), Multistep()
    for i in range(steps):
        v = _predict(velocity, x, plan, i)
        t, t_next = float(plan.times[i]), float(plan.times[i + 1])
        rows = plan.recorded[:, i].nonzero().flatten()
        moved = transition("ode", v, x, plan.times[i], plan.times[i + 1], noise=0.0, t_max=t_max).mean
        if plan.solver == "dpm2":
            moved = moved + solver.correction(x, v, plan.times[i], plan.times[i + 1], restart=plan.recorded[:, i])
        if len(rows):
            where = to_device(rows, x.device)
            at = (where, to_device(slot[rows], x.device))
            state[at] = x[where]
            if plan.kind != "ode":
                part = transition(
                    plan.kind, v[where], x[where], plan.times[i], plan.times[i + 1], noise=plan.noise, t_max=t_max
                )
                landed = part.sample(to_device(noise_at(i)[rows], x.device))
                logprob[at] = part.logprob(landed, plan.density)
                moved[where] = landed
            next_state[at] = moved[where]
            time[at], time_next[at] = x.new_full((len(rows),), t), x.new_full((len(rows),), t_next)
            slot[rows] += 1
        x = moved
    return Trajectory(x, state, next_state, time, time_next, logprob)


def _predict(velocity: Velocity, x: Tensor, plan: Plan, i: int) -> Tensor:
    """The velocity at step i, asked once for rows that are one state."""
    rows = torch.arange(len(x))
    times = to_device(plan.times[i], x.device)
    if plan.node is None:
        return velocity(x, times.expand(len(x)), rows)
    _, source = torch.unique(plan.node[:, i], return_inverse=True)
    first = torch.full((int(source.max()) + 1,), len(x), dtype=torch.long)
    first.scatter_reduce_(0, source, rows, "amin")
    v = velocity(x[to_device(first, x.device)], times.expand(len(first)), first)
    return v[to_device(source, x.device)]
