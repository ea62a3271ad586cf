"""Denoising steps: their densities, solvers without noise, and the loop over them. No networks, prompts or rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from burnish.options import Solver
from burnish.types.batch import first_of_each, to_device
from burnish.types.rollout import Path, Streams, columns

Kind = Literal["sde", "cps", "dance", "ddim", "ode"]
Density = Literal["gaussian", "squared_error"]


@dataclass(frozen=True)
class Transition:
    """A step from t to t_next: a Gaussian around ``mean`` with one standard deviation per sample.

    ``std`` includes the square root of the step length for every kind, so that every loss can rely on it.
    """

    mean: Tensor  # [B, ...] float32
    std: Tensor  # [B] float32; 0 where the step is deterministic
    step: Tensor  # [B] t - t_next > 0
    share: Tensor | float = 1.0  # [B] of the elements that are noised: the others are the same in every state

    def sample(self, noise: Tensor) -> Tensor:
        """The next state for standard normal ``noise`` [B, ...]."""
        return self.mean + column(self.std, self.mean) * noise

    def logprob(self, landed: Tensor, density: Density = "gaussian") -> Tensor:
        """Log-density of the next state ``landed`` [B, ...], averaged over noised elements as published losses do: [B].

        ``squared_error`` is -(landed - mean)^2 without scale and constant, the form in which Flow-CPS was published.
        It is undefined for a deterministic step, whose std is 0.
        """
        error = (landed.float() - self.mean).square().flatten(1).mean(1) / self.share
        if density == "squared_error":
            return -error
        return -error / (2 * self.std.square()) - self.std.log() - 0.5 * math.log(2 * math.pi)

    def stream(self, streams: Streams, number: int, share: Tensor) -> Transition:
        """That of one stream, of which a ``share`` [B] of the elements is noised."""
        return replace(self, mean=self.mean[:, columns(streams, number)], share=share)

    def stream_logprobs(self, landed: Tensor, density: Density, streams: Streams, shares: Tensor) -> Tensor:
        """``logprob`` of each stream by itself: [B, S]."""
        each = [
            self.stream(streams, i, share).logprob(landed[:, columns(streams, i)], density)
            for i, share in enumerate(shares.unbind(1))
        ]
        return torch.stack(each, 1) if each else landed.new_zeros(len(landed), 0)

    def score_power(self, landed: Tensor, density: Density = "gaussian") -> Tensor:
        """Squared norm of the gradient of ``logprob`` with respect to the mean: [B]."""
        error = (landed.float() - self.mean).flatten(1)
        scale = 0.5 if density == "squared_error" else self.std.square()
        return error.square().mean(1) / (error.shape[1] * scale**2 * self.share**2)


def transition(
    kind: Kind, velocity: Tensor, x: Tensor, t: Tensor | float, t_next: Tensor | float, *,
    noise: Tensor | float, t_max: float, share: Tensor | float = 1.0,
) -> Transition:  # fmt: skip
    """The Gaussian of one step. With ``noise`` 0 every kind is the Euler step x + (t_next - t) v.

    * ``sde``: Flow-GRPO, eq. 9; diffusion noise * sqrt(t / (1 - t)). It grows without bound as t -> 1, so at t = 1
      the denominator uses ``t_max``.
    * ``cps``: Flow-CPS, coefficients-preserving: a fraction sin(noise * pi / 2) of the noise at t_next is fresh.
    * ``dance``: DanceGRPO: constant diffusion ``noise``.
    * ``ddim``: DDIM, ``noise`` is its eta: 1 redraws all noise that the marginals allow (DiffusionNFT's stochastic
      solver).
    * ``ode``: no noise.

    Args:
        velocity: [B, ...] predicted eps - x_0.
        x: [B, ...] state at t.
        t: [B] or scalar, in (0, 1].
        t_next: [B] or scalar, in [0, t).
        noise: noise level, scalar or [B].
        t_max: the schedule's second time.
        share: [B] of the elements that are noised; velocity and noise are 0 in the others.
    """
    x, velocity = x.float(), velocity.float()
    t, t_next, level = (_per_sample(value, x) for value in (t, t_next, noise))
    step = t - t_next
    if kind == "ode":
        return Transition(x - column(step, x) * velocity, torch.zeros_like(t), step, share)
    if kind in ("cps", "ddim"):
        fresh = (
            torch.sin(level * math.pi / 2) if kind == "cps"
            # of the noise at t_next, what the state at t doesn't determine
            else level * (1 - (t_next * (1 - t) / (t * (1 - t_next))).square()).clamp_min(0).sqrt()
        )  # fmt: skip
        std = t_next * fresh
        kept = (t_next.square() - std.square()).clamp_min(0).sqrt()
        clean = x - column(t, x) * velocity
        pure = x + column(1 - t, x) * velocity
        return Transition(column(1 - t_next, x) * clean + column(kept, x) * pure, std, step, share)
    diffusion = level
    if kind == "sde":
        diffusion = level * (t / (1 - torch.where(t >= 1, torch.full_like(t, t_max), t))).sqrt()
    # -score = eps / t, and eps = x + (1 - t) v: the drift that keeps the marginals while noise is added
    restoring = diffusion.square() / (2 * t)
    drift = velocity + column(restoring, x) * (x + column(1 - t, x) * velocity)
    return Transition(x - column(step, x) * drift, diffusion * step.sqrt(), step, share)


def _per_sample(value: Tensor | float, like: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        return like.new_full((len(like),), value, dtype=torch.float32)
    return to_device(value.to(torch.float32), like.device).expand(len(like))


def column(value: Tensor, like: Tensor) -> Tensor:
    """Values [B] that broadcast over rows [B, ...]."""
    return to_device(value, like.device).view(-1, *[1] * (like.ndim - 1))


class Multistep:
    """Keeps the clean image that a deterministic step predicted for the next step; a stochastic step resets it."""

    def __init__(self) -> None:
        self._before: tuple[Tensor, Tensor, Tensor] | None = None  # clean [B, ...], its time, valid rows [B] bool

    def correction(self, x: Tensor, velocity: Tensor, t: Tensor, t_next: Tensor, *, restart: Tensor) -> Tensor:
        """The correction [B, ...] to the Euler step; 0 in rows whose previous step was not deterministic.

        It is also 0 in the last step, whose length is infinite in the solver's time.

        Args:
            x, velocity: [B, ...] at t.
            t, t_next: scalars, t > t_next.
            restart: [B] bool, rows whose step is stochastic.
        """
        clean = x - to_device(t, x.device) * velocity.float()
        before, self._before = self._before, (clean, t, ~restart)
        zero = torch.zeros_like(clean)
        if before is None or t_next <= 0:
            return zero
        change = to_device(extrapolation(before[1], t, t_next), x.device) * (clean - before[0])
        ready = to_device(before[2] & ~restart, x.device).view(-1, *[1] * (x.ndim - 1))
        return torch.where(ready, to_device(1 - t_next / t, x.device) * change, zero)


class Taylor:
    """Forecasts a network's output from the last two times that it ran: TaylorSeer to first order (Liu et al. 2025,
    arXiv:2503.06923).

    What is forecast is the predicted clean sample. That of a path with noise is a martingale: a stochastic step resets
    its slope.
    """

    def __init__(self, computed: Tensor, noisy: Tensor, x: Tensor) -> None:
        """Begin.

        Args:
            computed: [B, N] bool: steps at which the network runs, the first two and all with noise among them.
            noisy: [B, N] bool: steps with noise.
            x: [B, ...] states.
        """
        number = torch.arange(computed.shape[1])
        last = torch.where(computed, number, -1).cummax(1)[0].roll(1, 1)
        last[:, 0] = -1
        smooth = ~noisy.gather(1, last.clamp_min(0))
        distance, slopes = to_device(torch.stack([number - last, smooth]).mT.float(), x.device)
        self._distance, self._slopes = distance, slopes  # [N, B] in steps, to the last time; whether a slope holds
        self._clean, self._slope = torch.zeros_like(x), torch.zeros_like(x)  # then, and its change per step
        self._apart, self._size = x.new_zeros(len(x)), x.new_zeros(len(x))

    def velocity(self, i: int, x: Tensor, t: float, velocity: Tensor, rows: Tensor) -> Tensor:
        """The velocity [B, ...] at states x [B, ...] of time t of step i: what the network predicts for ``rows`` [M] is
        ``velocity`` [M, ...], and that of others is forecast."""
        distance, slopes = (column(value[i], x) for value in (self._distance, self._slopes))
        forecast = self._clean + slopes * distance * self._slope
        found = (x - forecast) / t
        found[rows] = velocity.float()
        clean = x[rows] - t * found[rows]
        if i > 1:
            self._apart[rows] += (clean - forecast[rows]).square().flatten(1).sum(1)
            self._size[rows] += clean.square().flatten(1).sum(1)
        self._slope[rows] = (clean - self._clean[rows]) * (slopes / distance)[rows]
        self._clean[rows] = clean
        return found

    @property
    def error(self) -> Tensor:
        """Relative error [B] of what is forecast, at the steps where the network runs as well."""
        return (self._apart / self._size).sqrt()


def extrapolation(t_before: Tensor, t: Tensor, t_next: Tensor) -> Tensor:
    """How far DPM-Solver++ 2M extrapolates the predicted clean image, in units of its last change.

    It is h / (2 h_before), where h is the increase of log((1 - t) / t) in a step; that is infinite in a step from
    t = 1, after which this is 0. Without it, data prediction is Euler's method for flow matching.

    Args:
        t_before, t, t_next: scalars, decreasing: start of the previous step, and start and end of this one.
    """
    a, b, c = (torch.special.logit(1 - time.double()) for time in (t_before, t, t_next))
    factor: Tensor = 0.5 * (c - b) / (b - a)
    return factor.to(t.dtype)


def thinned(times: Tensor, start: int, share: float) -> Tensor:
    """A schedule with only a share of its steps after ``start``, rounded up and evenly spaced by index.

    Args:
        times: [N + 1] decreasing from 1 to 0.
        start: the first step that may be dropped.
        share: of the N - start later steps to keep, in (0, 1].
    """
    later_steps = len(times) - 1 - start
    kept = max(math.ceil(later_steps * share - 1e-9), 1)
    later = [start + round(later_steps * i / kept) for i in range(1, kept + 1)]
    return times[[*range(start + 1), *later]]


T = TypeVar("T")
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
    interval: int = 1  # deterministic steps of which the network computes one; see ``computed``
    streams: Streams = ()  # whose log-probs are recorded one by one

    @property
    def computed(self) -> Tensor:
        """[B, N] bool: steps at which the network runs; at the others its output is forecast.

        It runs wherever a step is recorded, in the first two steps and in the last one, whose output is the sample.
        """
        computed = self.recorded.clone()
        computed[:, :2] = computed[:, -1] = True
        for i in range(2, computed.shape[1]):
            computed[:, i] |= ~computed[:, max(i + 1 - self.interval, 0) : i].any(1)
        return computed

    def select(self, rows: slice) -> Plan:
        """The plan of some rows."""
        branch = None if self.branch is None else self.branch[rows]
        return replace(self, recorded=self.recorded[rows], branch=branch)


def denoise(
    velocity: Velocity, x: Tensor, plan: Plan, noise_at: Callable[[int], Tensor], *, share: Tensor | None = None,
    stream_share: Tensor | None = None, pauses: Collection[int] = (),
) -> Generator[None, None, Path]:  # fmt: skip
    """Denoise from pure noise, and record the steps that are trained on; see ``finished``.

    Args:
        velocity: predicts eps - x_0 for some rows of the batch.
        x: [B, ...] standard normal start; equal in rows of one branch.
        plan: times, kind of noise, and which steps of which rows are recorded.
        noise_at: fresh standard normal noise [B, ...] for a step, equal in rows that share a branch after it; called
            only for steps that are stochastic in some row.
        share: [B] of a state's elements that are noised; None is all.
        stream_share: [B, S] of those of each stream of the plan; None is all.
        pauses: steps that it waits before, until it is asked to go on; the number of steps is behind the last one.
    """
    batch, steps = plan.recorded.shape
    share = x.new_ones(batch) if share is None else share
    stream_share = x.new_ones(batch, len(plan.streams)) if stream_share is None else stream_share
    recorded = int(plan.recorded[0].sum()) if batch else 0
    assert (plan.recorded.sum(1) == recorded).all(), "rows record different numbers of steps"
    x = x.float()
    state = x.new_zeros(batch, recorded, *x.shape[1:])
    next_state = torch.zeros_like(state)
    logprob, stream_logprob = x.new_zeros(batch, recorded), x.new_zeros(batch, recorded, len(plan.streams))
    times = plan.times.tolist()
    time, time_next = (
        starts[:-1].expand(batch, -1)[plan.recorded].view(batch, recorded).clone()
        for starts in (plan.times, plan.times.roll(-1))
    )
    here = _recorded(plan.recorded, x.device)
    stochastic, computed = plan.recorded & (plan.kind != "ode"), plan.computed
    t_max, solver = times[1], Multistep()
    taylor = Taylor(computed, stochastic, x) if plan.interval > 1 else None
    for i in range(steps):
        if i in pauses:
            yield
        noisy, rows, v = stochastic[:, i], computed[:, i].nonzero().flatten(), x[:0]
        if len(rows):
            *asked, taken = _asked(plan, i, x, rows)
            v = velocity(*asked)[taken]
        if taylor is not None:
            v = taylor.velocity(i, x, times[i], v, to_device(rows, x.device))
        moved = transition("ode", v, x, times[i], times[i + 1], noise=0.0, t_max=t_max).mean
        if plan.solver == "dpm2m":
            moved = moved + solver.correction(x, v, plan.times[i], plan.times[i + 1], restart=noisy)
        elif plan.solver == "heun" and times[i + 1] > 0 and len(still := (computed[:, i] & ~noisy).nonzero().flatten()):
            there = to_device(still, x.device)
            *asked, taken = _asked(plan, i + 1, moved, still)
            second = velocity(*asked)[taken]
            half = to_device((plan.times[i + 1] - plan.times[i]) / 2, x.device)
            moved[there] = moved[there] + half * (second.float() - v[there].float())
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
                stream_logprob[at] = step.stream_logprobs(landed, plan.density, plan.streams, stream_share[where])
                moved[where] = landed
            next_state[at] = moved[where]
        x = moved
    if steps in pauses:
        yield
    error = x.new_zeros(batch) if taylor is None else taylor.error
    return Path(
        latents=x, state=state, next_state=next_state, time=time, time_next=time_next, logprob=logprob,
        stream_logprob=stream_logprob, forecast_error=error,
    )  # fmt: skip


def finished(run: Generator[Any, Any, T], answer: Callable[[Any], Any] = lambda asked: None) -> T:
    """What a computation returns in the end; what it asks for on the way is answered."""
    answers = None
    while True:
        try:
            asked = run.send(answers)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        answers = answer(asked)


def _recorded(recorded: Tensor, device: torch.device) -> list[tuple[Any, Any] | None]:
    """By step, the rows that are recorded [R] and the places of their states [R]: moved to the device at once."""
    chosen = recorded.T.nonzero()  # by step, then by row
    place = recorded.cumsum(1).T[recorded.T] - 1
    rows, places = to_device(torch.stack([chosen[:, 1], place]), device)
    counts = recorded.sum(0).tolist()
    parts = zip(rows.split(counts), places.split(counts), strict=True)
    return [part if count else None for part, count in zip(parts, counts, strict=True)]


def _asked(plan: Plan, step: int, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Any]:
    """What a velocity at a step is asked for, of some rows of states x [B, ...]: once for those of a branch.

    Returns:
        States [M, ...], times [M] and rows [M]; and which of these each of the rows takes: without branches its own.
    """
    if plan.branch is None:
        return x if len(rows) == len(x) else x[to_device(rows, x.device)], plan.times[step].expand(len(rows)), rows, ...
    first, taken = first_of_each(plan.branch[rows, step])
    rows = rows[first]
    return x[to_device(rows, x.device)], plan.times[step].expand(len(rows)), rows, to_device(taken, x.device)


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: unconditional + scale * (conditional - unconditional).

    In the space of clean samples it is the same formula, since x_0 is linear in v.

    Args:
        conditional, unconditional: [M, ...] velocities.
        scale: 1 is no guidance.
    """
    return unconditional + scale * (conditional - unconditional)


def static_shift(t: Tensor, shift: float) -> Tensor:
    """Move times towards noise: t -> s t / (1 + (s - 1) t) (Stable Diffusion 3, eq. 23)."""
    return shift * t / (1 + (shift - 1) * t)


def diffuse(clean: Tensor, noise: Tensor, time: Tensor, noised: Tensor | None = None) -> Tensor:
    """x_t = (1 - t) clean + t noise.

    Args:
        clean, noise: [M, ...].
        time: [M].
        noised: [M, ...] bool, or what broadcasts to it; elements outside stay as they are. None noises all.
    """
    t = column(time, clean)
    mixed = (1 - t) * clean + t * noise
    return mixed if noised is None else torch.where(noised, mixed, clean)


def diffuse_further(
    x: Tensor, noise: Tensor, time: Tensor, level: Tensor, noised: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """A state at ``time`` with more noise, so that it is one at ``level``: x_level = a x + b noise.

    Args:
        x, noise: [M, ...].
        time: [M] below 1.
        level: [M] above ``time``.
        noised: see ``diffuse``.

    Returns:
        x_level [M, ...], and a and b, which broadcast to it.
    """
    t, tau = (column(value, x) for value in (time, level))
    a = (1 - tau) / (1 - t)
    b = (tau.square() - (t * a).square()).sqrt()
    mixed = a * x + b * noise
    return mixed if noised is None else torch.where(noised, mixed, x), a, b


def uniform_above(draw: Tensor, time: Tensor, *, shift: float, gap: float) -> Tensor:
    """Times from above ``time`` to 1: uniform before they are shifted, at least ``gap`` above it there.

    Args:
        draw: uniform in [0, 1), of any shape.
        time: [*] that it broadcasts with.
        shift: see ``static_shift``.
        gap: see above.
    """
    low = (time / (shift - (shift - 1) * time) + gap).clamp_max(1.0)  # where the shift leads to ``time``
    return static_shift(low + draw * (1 - low), shift)


def stratify(draw: Tensor) -> Tensor:
    """Stratified draws: one from each of n equal intervals of [0, 1), in order, so that their mean hardly varies.

    Args:
        draw: [..., n] uniform in [0, 1).
    """
    count = draw.shape[-1]
    return (torch.arange(count, dtype=draw.dtype, device=draw.device) + draw) / count


def to_normal(draw: Tensor) -> Tensor:
    """Uniform draws as standard normal ones, clipped at about +-5: for stratified logit-normal times."""
    return torch.special.ndtri(draw.clamp(1e-7, 1 - 1e-7))  # type: ignore[no-any-return]
