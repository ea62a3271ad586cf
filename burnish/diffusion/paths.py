"""Ends of sampled paths: what algorithms learn from that follow gradients through steps, or teach few of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.diffusion.batches import ComparedSamples, compare, groups_of, together
from burnish.diffusion.steps import column, diffuse, uniform_above
from burnish.types.batch import Batch, on_host, shared, to_device
from burnish.types.columns import at, read
from burnish.types.rollout import Prompt, Requests, Scored, share_of
from burnish.utils import random

LEAST = 0.02  # noise level of a step that can still change an image


@dataclass(kw_only=True)
class Ends(Batch):
    """The last denoising steps of samples: where they begin, and the times that they pass."""

    conditioning: Requests
    prompts: list[Prompt]  # [M]
    state: Tensor  # [M, ...] at the first of the times
    times: Tensor = on_host()  # [M, K + 1]
    share: Tensor  # [M] of a state's elements that are noised

    @classmethod
    def recorded(cls, scored: Scored) -> Ends:
        """From the first recorded step on, along the recorded times, and to 0 in one step where those end earlier."""
        trace = scored.trace
        times = torch.cat([trace.time, torch.zeros_like(trace.time[:, :1])], 1)
        return cls(
            conditioning=trace.conditioning,
            prompts=scored.prompts,
            state=read(trace.state[:, 0]),
            times=times,
            share=trace.share,
        )

    @classmethod
    def noised_again(cls, scored: Scored, copies: int, level: float | None = None) -> Ends:
        """Finished samples with fresh noise, several times each, and one step from there to the end.

        Args:
            scored: the samples.
            copies: of each.
            level: of the noise; None takes that of the last step which starts from enough of it to change anything.
        """
        trace = scored.trace
        rows = torch.arange(len(scored)).repeat_interleave(copies)
        keys = [(*key, copy) for key in scored.keys("renoise") for copy in range(copies)]
        clean, noised = (read(at(value, rows)) for value in (trace.latents, trace.noised))
        noise = to_device(random.normal(clean.shape[1:], keys), clean.device)
        levels = trace.schedule[trace.schedule >= LEAST]
        start = levels[-1] if level is None else levels.new_tensor(level)
        times = torch.stack([start, torch.zeros_like(start)]).expand(len(rows), 2).contiguous()
        return cls(
            conditioning=trace.conditioning.select(rows),
            prompts=[scored.prompts[row] for row in rows.tolist()],
            state=diffuse(clean, noise, times[:, 0], noised),
            times=times,
            share=share_of(noised),
        )


REACH = 0.101  # share of the range of noise levels that SRPO's step spans at most
INSIDE = 0.005  # of the range that is left out at either end


@dataclass(kw_only=True)
class Realigned(Ends):
    """Finished samples with the noise that they came from, twice each: a step from a noise level down to another, and
    one from below up to the same (SRPO's Direct-Align, arXiv:2509.06942). The times are those of the step."""

    noise: Tensor  # [M, ...]
    noised: Tensor  # [M, ...] bool, or what broadcasts to it
    denoises: Tensor  # [M] bool: the step goes down
    emphasis: Tensor  # [M]
    update: int = shared()

    @classmethod
    def of(cls, scored: Scored, levels: tuple[float, float], emphasis: Sequence[tuple[float, float]]) -> Realigned:
        """Of samples whose first step is recorded.

        Args:
            scored: the samples.
            levels: the range of noise levels.
            emphasis: at its ends, of steps that go down and of those that go up.
        """
        trace, (low, high) = scored.trace, levels
        draw = random.uniform(1, scored.keys("realign"))[:, 0]
        place = INSIDE + (1 - 2 * INSIDE) * draw  # in the range, of where both steps end
        reach = torch.minimum(place, 1 - place).clamp(max=REACH)
        begins, ends = torch.stack([place + reach, place - reach], 1), place[:, None].expand(-1, 2)
        lower, edges = torch.minimum(begins, ends), torch.tensor(emphasis)
        strength = edges[:, 0] + (edges[:, 1] - edges[:, 0]) * lower
        rows = torch.arange(len(scored)).repeat_interleave(2)
        clean, noised = (read(at(value, rows)) for value in (trace.latents, trace.noised))
        device = clean.device
        times = (low + (high - low) * torch.stack([begins, ends], 2)).flatten(0, 1).to(trace.schedule.dtype)
        path = times.clamp(max=float(trace.schedule[0]))
        first = read(at(trace.state, rows, torch.zeros_like(rows)))
        noise = first / column(trace.time[rows, 0], first)  # networks that predict noise begin below t = 1
        return cls(
            conditioning=trace.conditioning.select(rows),
            prompts=[scored.prompts[row] for row in rows.tolist()],
            state=diffuse(clean, noise, path[:, 0], noised),
            times=path,
            share=share_of(noised),
            noise=noise,
            noised=noised,
            denoises=to_device(torch.tensor([True, False]).repeat(len(scored)), device),
            emphasis=to_device(strength.flatten().to(times.dtype), device),
            update=scored.update,
        )

    def recovered(self, x: Tensor) -> Tensor:
        """The clean samples [M, ...] that states at the last of the times are made of: (x - t noise) / (1 - t)."""
        t = column(self.times[:, -1], x)
        return torch.where(self.noised, (x - t * self.noise) / (1 - t), x)


GAP = 0.02  # of a noise level above the time of the state that is noised, before the shift
SHIFT = 3.0  # of noise levels towards noise
JUDGED = 0.3  # smallest noise level at which the surrogate pulls the policy, and learns


@dataclass(kw_only=True)
class GroupPaths(ComparedSamples):
    """Groups of samples with all of their steps, and J of these to train at; a row is a group of M."""

    state: Tensor  # [B, M, N, ...] where each step began
    next_state: Tensor  # [B, M, N, ...] where it ended
    time: Tensor = on_host()  # [B, N]
    time_next: Tensor = on_host()  # [B, N]
    step: Tensor = on_host()  # [B, J] long: steps of the policy that are trained
    level: Tensor = on_host()  # [B, J] noise level at which the reference and the fake score judge them
    reward_level: Tensor = on_host()  # [B, J] and the surrogate
    surrogate_step: Tensor = on_host()  # [B, J] long: steps whose ends the surrogate learns from
    surrogate_level: Tensor = on_host()  # [B, J] noise level at which it does

    @classmethod
    def of(cls, scored: Scored, value: Tensor, trained: int) -> GroupPaths:
        """Groups of samples with their advantages [B]; what is drawn for a group depends on its prompt alone.

        Of each, ``trained`` steps are learned from.
        """
        samples, members = compare(scored, value, groups_of(scored))
        trace, first = scored.trace, members[:, 0]
        time, time_next = trace.time[first], trace.time_next[first]
        keys = [(scored.seed, "steps", scored.update, uid) for uid in samples.uid]
        count = time.shape[1]
        step = torch.tensor([random.permutation(count, *key)[:trained] for key in keys]).view(-1, trained)
        draws = random.uniform(4 * trained, keys) if keys else torch.zeros(0, 4 * trained)
        chosen, *levels = draws.view(-1, 4, trained).unbind(1)
        odds = torch.arange(1.0, count + 1).cumsum(0)  # a step is as likely as it is late, counted from 1
        surrogate_step = torch.searchsorted(odds / odds[-1], chosen.contiguous(), right=True).clamp_max(count - 1)
        most = float(trace.schedule[0])  # networks that predict noise know no level above

        def level(draw: Tensor, steps: Tensor, floor: float) -> Tensor:
            begun = time_next.gather(1, steps).clamp_min(floor)
            return uniform_above(draw, begun, shift=SHIFT, gap=GAP).clamp_max(most)

        return cls(
            **vars(samples),
            state=at(trace.state, members),
            next_state=at(trace.next_state, members),
            time=time,
            time_next=time_next,
            step=step,
            level=level(levels[0], step, 0.0),
            reward_level=level(levels[1], step, JUDGED),
            surrogate_step=surrogate_step,
            surrogate_level=level(levels[2], surrogate_step, JUDGED),
        )

    def terms(self, size: int) -> Iterator[PathTerms]:
        """One term per sample and trained step, about ``size`` at once; a group at a step stays together."""
        for atoms in together(self.present, self.step.shape[1], size):
            yield self._terms(*atoms)

    def _terms(self, atom: Tensor, row: Tensor, slot: Tensor, member: Tensor) -> PathTerms:
        device = self.state.device
        step, surrogate_step = self.step[row, slot], self.surrogate_step[row, slot]

        def noise(purpose: str, own: Tensor) -> Tensor:
            sample = self.sample.cpu()[row, own]
            keys = [
                (self.seed, purpose, self.update, self.uid[r], s, k)
                for r, s, k in zip(row.tolist(), sample.tolist(), slot.tolist(), strict=True)
            ]
            number = {key: i for i, key in enumerate(dict.fromkeys(keys))}  # what a group shares is sent once
            drawn = to_device(random.normal(self.state.shape[3:], list(number)), device)
            return drawn[to_device(torch.tensor([number[key] for key in keys]), device)]

        noised, together = read(at(self.noised, row)), torch.zeros_like(member)
        return PathTerms(
            conditioning=self.conditioning.select(row),
            state=read(at(self.state, row, member, step)),
            time=self.time[row, step],
            time_next=self.time_next[row, step],
            level=self.level[row, slot],
            fake_noise=noise("fake", member),
            noise=noise("policy", member),
            reward_level=self.reward_level[row, slot],
            reward_noise=noise("reward", together),
            surrogate_state=read(at(self.next_state, row, member, surrogate_step)),
            surrogate_time=self.time_next[row, surrogate_step],
            surrogate_level=self.surrogate_level[row, slot],
            surrogate_noise=noise("surrogate", together),
            surrogate_weight=to_device((surrogate_step + 1) / self.time.shape[1], device),
            number=to_device(step, device),
            value=to_device(self.value.cpu()[row, member], device),
            atom=atom.unique(return_inverse=True)[1],
            noised=noised,
            share=share_of(noised),
        )


@dataclass(kw_only=True)
class PathTerms(Batch):
    """Terms of the loss: one row of every forward each."""

    conditioning: Requests
    state: Tensor  # [M, ...] where a step of the policy begins
    time: Tensor = on_host()  # [M]
    time_next: Tensor = on_host()  # [M] where it ends
    level: Tensor = on_host()  # [M] to which its end is noised
    fake_noise: Tensor  # [M, ...] by what, where the fake score learns
    noise: Tensor  # [M, ...] and where the policy does
    reward_level: Tensor = on_host()  # [M] to which its end is noised for the surrogate
    reward_noise: Tensor  # [M, ...] by what: equal in a group
    surrogate_state: Tensor  # [M, ...] where another step ended, which the surrogate learns from
    surrogate_time: Tensor = on_host()  # [M]
    surrogate_level: Tensor = on_host()  # [M]
    surrogate_noise: Tensor  # [M, ...] equal in a group
    surrogate_weight: Tensor  # [M] of that in its loss
    number: Tensor  # [M] long: which step the policy's is
    value: Tensor  # [M] advantages
    atom: Tensor = on_host()  # [M] long: equal in terms that are compared with each other, counted from 0
    noised: Tensor  # [M, ...] bool, or what broadcasts to it
    share: Tensor  # [M] of the elements that are noised


FLOOR = 1e-5  # smallest distance that a pull is divided by


def preference_target(x: Tensor, noise: Tensor, time: Tensor, level: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """A velocity at ``level`` of which the average is that of clean samples, from a state on the way to one of them.

    x_level = a x + b noise. With x = (1 - t) x_0 + t eps, noise / b counts the noise of the state too, which
    -x / (1 - t) brings along; at t = 0 it is noise - x, as in flow matching.

    Args:
        x: [M, ...] the state.
        noise: [M, ...] that was added to it.
        time, level: [M].
        a, b: see ``burnish.diffusion.steps.diffuse_further``.
    """
    t, tau = (column(value, x) for value in (time, level))
    return noise / b * (tau + t.square() * a / (1 - t)) - x / (1 - t)


def pulled(clean: Tensor, pull: Tensor, distance: Tensor, share: Tensor | float = 1.0) -> Tensor:
    """Squared distance of predicted clean samples to where they are pulled, which has no gradient.

    Args:
        clean: [M, ...] with gradients.
        pull: [M, ...] where to.
        distance: [M] that it is divided by.
        share: see ``burnish.rl.surrogates.squared_distance``.

    Returns:
        [M].
    """
    target = (clean + pull).detach()
    return (target - clean).square().flatten(1).mean(1) / share / distance


def mean_distance(clean: Tensor, other: Tensor, share: Tensor | float = 1.0) -> Tensor:
    """Mean absolute difference [M], without gradient, by which pulls of unlike noise levels are made alike."""
    with torch.no_grad():
        return ((clean - other).abs().flatten(1).mean(1) / share).clamp_min(FLOOR)


def hold_astray(error: Tensor, reference: Tensor, advantage: Tensor, astray: Tensor) -> tuple[Tensor, Tensor]:
    """No gradient through the error of samples of a network astray that would lead it further.

    Args:
        error: [M] matching errors.
        reference: [M] those of the reference, without gradient.
        advantage: [M].
        astray: [M] bool: where the network is far from the reference.

    Returns:
        The errors [M], some without gradient, and which these are [M] bool: of good samples that are matched better
        than by the reference, and of others that are matched worse.
    """
    with torch.no_grad():
        held = astray & torch.where(advantage > 0, error < reference, error > reference)
    return torch.where(held, error.detach(), error), held
