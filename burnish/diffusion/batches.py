"""What most algorithms learn from: stochastic denoising steps, and finished samples at random noise levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from burnish.diffusion.steps import diffuse
from burnish.rl.algorithm import OldLogprobs
from burnish.rl.preference import select_best
from burnish.types.batch import Batch, first_of_each, on_host, shared, to_device
from burnish.types.columns import at, read
from burnish.types.rollout import (
    Denoising,
    Loss,
    OfflineSamples,
    Requests,
    Scored,
    Steps,
    Streams,
    columns,
    share_of,
    stream_shares,
    unprompted,
)
from burnish.utils import random

if TYPE_CHECKING:
    from burnish.diffusion.roles import FlowRoles

# times [R, J] of rows with these keys, each by its own key alone, from a schedule of denoising steps [N + 1]
DrawLevels = Callable[[Sequence[tuple[random.Part, ...]], Tensor], Tensor]


@dataclass(kw_only=True)
class AnnotatedSteps(Batch):
    """Rollouts with what needed a forward pass."""

    scored: Scored
    old: Tensor  # [B, K] log-probs that ratios refer to; [B, K, S] where streams have advantages of their own
    learner: Tensor  # [B, K] log-probs under the policy that learns, before its first step; [B, 0] if unread
    old_mean: Tensor  # [B, K, ...] mean of each step under the policy that old belongs to; [B, K, 0, ...] if unread
    reference_mean: Tensor  # [B, K, ...] mean of each step under the reference; [B, K, 0, ...] if unread
    old_logprobs: OldLogprobs = shared(default="sampler")  # whose log-probs old is
    token_old: Tensor  # [B, T] log-probs that ratios of tokens refer to
    token_learner: Tensor  # [B, T] under the policy that learns, before its first step; the sampler's if unread
    token_reference: Tensor  # [B, T] under the reference; the sampler's if unread
    metrics: dict[str, float] = shared(default_factory=dict)


@dataclass(kw_only=True)
class StepBatch(AnnotatedSteps):
    """Samples to learn from, with the advantage of each of their steps."""

    advantage: Tensor  # [B, K], or of each stream [B, K, S]
    weight: Tensor  # [B, K] of a term in the loss; it is not in the count that the loss is divided by
    trained: Tensor  # [B, K] bool: the others are no terms at all
    token_advantage: Tensor  # [B] of all tokens of a sample
    token_weight: Tensor  # [B, T] of a token in the loss; 0 where there is none, or none that is trained

    def costs(self) -> list[int]:
        """Steps that are trained of each sample; 1 where only its tokens are."""
        return [int(steps) for steps in actions(self.trained, self.token_weight).tolist()]

    def micro_batches(self, size: int, *, whole_samples: bool) -> Iterator[StepTerms | TokenTerms]:
        """Its trained steps in forward passes of ``size`` at most; all steps of a sample in the same one, however many
        they are, where samples stay whole. Tokens come after them, all of a sample in the same pass."""
        if whole_samples:
            yield from (replace(self.select(rows).terms(), whole_samples=True) for rows in self._packed(size))
        else:
            yield from self.terms().split(size)
        written = self.token_weight.any(1).nonzero().flatten()
        if len(written):
            yield from self.select(written).token_terms().split(size)

    def token_terms(self) -> TokenTerms:
        """A row per sample: [B]."""
        trace = self.scored.trace
        return TokenTerms(
            conditioning=trace.conditioning, mask=trace.token_mask, sampled=trace.token_logprob, old=self.token_old,
            reference=self.token_reference, advantage=self.token_advantage, weight=self.token_weight,
            kl_factor=self.scored.scores.kl_factor, old_logprobs=self.old_logprobs,
        )  # fmt: skip

    def _packed(self, size: int) -> list[list[int]]:
        """Samples with trained steps, in parts of ``size`` steps at most, or of a sample."""
        parts, taken = list[list[int]](), size
        for row, count in enumerate(self.trained.sum(1).tolist()):
            if count and taken + count > size:
                parts.append([])
                taken = 0
            if count:
                parts[-1].append(row)
                taken += count
        return parts

    def terms(self) -> StepTerms:
        """One term per trained step of a sample: [M], the steps of a sample next to each other."""
        trace, (count, slots) = self.scored.trace, self.old.shape[:2]
        schedule = to_device(trace.schedule[:-1], trace.time.device)
        every = StepTerms(
            **vars(trace.steps()),
            index=(trace.time[..., None] - schedule).abs().argmin(-1).flatten().tolist(),
            row=[row for row in range(count) for _ in range(slots)],
            slot=list(range(slots)) * count,
            advantage=self.advantage.flatten(0, 1),
            weight=self.weight.flatten(),
            old=self.old.flatten(0, 1),
            old_mean=self.old_mean.flatten(0, 1),
            reference_mean=self.reference_mean.flatten(0, 1),
            kl_factor=[factor for factor in self.scored.scores.kl_factor for _ in range(slots)],
            old_logprobs=self.old_logprobs,
        )
        return every if self.trained.all() else every.select(self.trained.flatten().nonzero().flatten())


@dataclass(kw_only=True)
class StepTerms(Steps):
    """Terms of the loss: one row of a forward each."""

    index: list[int]  # [M] which denoising step of the schedule
    row: list[int]  # [M] which sample of its batch
    slot: list[int]  # [M] which of the sample's recorded steps
    advantage: Tensor  # [M], or of each stream [M, S]
    weight: Tensor  # [M]
    old: Tensor  # [M], or of each stream [M, S]
    old_mean: Tensor  # [M, ...]
    reference_mean: Tensor  # [M, ...]
    kl_factor: list[float]  # [M] of the KL to the reference
    old_logprobs: OldLogprobs = shared(default="sampler")  # whose log-probs old is
    whole_samples: bool = shared(default=False)  # all trained steps of every sample are here

    def stream(self, number: int) -> Self:
        """One stream of them."""
        there = columns(self.streams, number)
        return replace(
            super().stream(number), advantage=self.advantage[:, number], old=self.old[:, number],
            old_mean=self.old_mean[:, there], reference_mean=self.reference_mean[:, there],
        )  # fmt: skip

    def by_sample(self, value: Tensor) -> Tensor:
        """Values of terms [M] as [B, K], 0 where there is no term; a term is a sample unless samples are complete."""
        if not self.whole_samples:
            return value[:, None]
        shape = max(self.row, default=-1) + 1, max(self.slot, default=-1) + 1
        return value.new_zeros(shape).index_put(self._place(value.device), value)

    def by_term(self, value: Tensor) -> Tensor:
        """The reverse: [B, K] to [M]."""
        return value[self._place(value.device)] if self.whole_samples else value[:, 0]

    def mask(self, device: torch.device) -> Tensor:
        """Where terms are in ``by_sample``: [B, K] bool."""
        return self.by_sample(torch.ones(len(self), dtype=torch.bool, device=device))

    def _place(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return to_device(torch.tensor(self.row), device), to_device(torch.tensor(self.slot), device)

    def metrics_by_step(self, values: dict[str, Tensor]) -> dict[str, Any]:
        """Ratio and KL by denoising step, as (sum, count) under ``NAME/step_K``, of values per term [M]."""
        metrics: dict[str, Any] = {}
        names = ("actor/ratio_mean", "actor/ratio_square", "actor/ppo_kl", "actor/kl_loss")
        chosen = {name: values[name].detach() for name in names if name in values}
        for number in sorted(set(self.index)):
            rows = torch.tensor([row for row, step in enumerate(self.index) if step == number])
            for name, value in chosen.items():
                here = to_device(rows, value.device)
                metrics[f"{name}/step_{number}"] = (value.index_select(0, here).sum(), len(rows))
        return metrics


@dataclass(kw_only=True)
class TokenTerms(Batch):
    """Samples whose tokens are terms of the loss: one row of a forward each."""

    conditioning: Requests  # has the tokens
    mask: Tensor  # [M, T] bool
    sampled: Tensor  # [M, T] log-probs under the weights that sampled
    old: Tensor  # [M, T]
    reference: Tensor  # [M, T]; the sampler's if unread
    advantage: Tensor  # [M]
    weight: Tensor  # [M, T]
    kl_factor: list[float]  # [M] of the KL to the reference
    old_logprobs: OldLogprobs = shared(default="sampler")  # whose log-probs old is


def actions(trained: Tensor, tokens: Tensor) -> Tensor:
    """What a sample counts in the mean of a loss, [B]: its trained steps, or 1 where only tokens are trained.

    Args:
        trained: [B, K] bool.
        tokens: [B, T], not 0 where a token is trained.
    """
    return torch.maximum(trained.sum(1), tokens.any(1).long())


def taken_once(trace: Denoising, group: Tensor, present: Tensor) -> Tensor:
    """Of the samples of a prompt that took a step as one, only the first present one stands for it: [B, K] bool."""
    keep, rows = torch.zeros_like(trace.node, dtype=torch.bool), present.nonzero().flatten()
    for slot, nodes in enumerate(trace.node[rows].T):
        first, _ = first_of_each(torch.stack([group[rows], nodes], 1))
        keep[rows[first], slot] = True
    return keep


def subset(scored: Scored, fraction: float) -> Tensor:
    """A random part of each sample's recorded steps, drawn for that sample alone: [B, K] bool."""
    shape = scored.trace.time.shape
    kept = max(int(shape[1] * fraction + 1e-9), 1)
    chosen = torch.zeros(shape, dtype=torch.bool)
    for row, key in enumerate(scored.keys("timesteps")):
        chosen[row, random.permutation(shape[1], *key)[:kept]] = True
    return chosen


def best_worst(scored: Scored, keep: int) -> Tensor:
    """The best and the worst samples of each prompt, ``keep`` of them: [B, 1] bool."""
    scores = scored.scores
    rows = select_best(scores.reward, scored.group, scores.missing, keep, worst=True)
    return torch.zeros(len(scored), 1, dtype=torch.bool).index_fill(0, rows, True)


def together(present: Tensor, slots: int, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Samples at slots, about ``size`` at once; the members of a row at a slot stay together.

    Args:
        present: [B, M], whether a member of a row is there.
        slots: noise levels or steps of each row.
        size: samples at slots of a part.

    Yields:
        The number of row and slot together, the row, the slot and the member of each, all on the CPU.
    """
    rows, members = present.shape
    each, there = max(1, size // members), present.cpu()
    for start in range(0, rows * slots, each):
        atom = torch.arange(start, min(start + each, rows * slots)).repeat_interleave(members)
        row, slot = atom // slots, atom % slots
        member = torch.arange(members).repeat(len(atom) // members)
        if (kept := there[row, member]).any():
            yield atom[kept], row[kept], slot[kept], member[kept]


@dataclass(kw_only=True)
class ComparedSamples(Batch):
    """Samples that are compared with each other, in one row, and what each is worth.

    M members to a row: 1 where samples are judged on their own, 2 in a preference pair, or a whole group.
    """

    conditioning: Requests  # [B] what the members of a row share
    noised: Tensor  # [B, ...] bool: elements of every member that are noised, or what broadcasts to them
    value: Tensor  # [B, M] what the algorithm makes of the reward, or of those of each stream [B, M, S]
    present: Tensor  # [B, M] bool: the others have no reward, and no term
    uid: list[str]  # [B]
    sample: Tensor  # [B, M] long: with uid and level it names the noise
    seed: int = shared()
    update: int = shared()


@dataclass(kw_only=True)
class JudgedSamples(ComparedSamples):
    """Finished samples and the noise levels to train at."""

    clean: Tensor  # [B, M, ...]
    time: Tensor = on_host()  # [B, J] shared by the members
    kl_factor: list[list[float]]  # [B][M]
    shared_noise: bool = shared()  # all members get the noise of the first
    streams: Streams = shared(default=())  # that have advantages of their own

    def costs(self) -> list[int]:
        """Members of each row that are there."""
        return [int(members) for members in self.present.sum(1).tolist()]

    def terms(self, size: int) -> Iterator[ForwardTerms]:
        """One term per sample and noise level, about ``size`` at once; members of a row at a level stay together.

        The noise depends on the sample alone, never on what else is in the batch.
        """
        for atoms in together(self.present, self.time.shape[1], size):
            yield self._terms(*atoms)

    def _terms(self, atom: Tensor, row: Tensor, level: Tensor, member: Tensor) -> ForwardTerms:
        sample = self.sample.cpu()[row, torch.zeros_like(member) if self.shared_noise else member]
        keys = [
            (self.seed, "forward", self.update, self.uid[r], s, k)
            for r, s, k in zip(row.tolist(), sample.tolist(), level.tolist(), strict=True)
        ]
        device = self.clean.device
        noise = to_device(random.normal(self.clean.shape[2:], keys), device)
        clean, noised = read(at(self.clean, row, member)), read(at(self.noised, row))
        time = self.time[row, level]
        return ForwardTerms(
            conditioning=self.conditioning.select(row),
            clean=clean,
            state=diffuse(clean, noise, time, noised),
            target=torch.where(noised, noise - clean, 0.0),
            share=share_of(noised),
            time=time,
            value=to_device(self.value.cpu()[row, member], device),
            atom=atom,
            kl_factor=[self.kl_factor[r][m] for r, m in zip(row.tolist(), member.tolist(), strict=True)],
            stream_share=stream_shares(noised, self.streams) if self.streams else clean.new_zeros(len(time), 0),
            streams=self.streams,
        )


@dataclass(kw_only=True)
class ForwardTerms(Batch):
    """Terms of the loss: one row of a forward each."""

    conditioning: Requests
    clean: Tensor  # [M, ...]
    state: Tensor  # [M, ...] x_t; clean where elements are not noised
    target: Tensor  # [M, ...] noise - clean, the velocity that a perfect model predicts on average; 0 there, as it is
    share: Tensor  # [M] of the elements that are noised: means are over these
    time: Tensor = on_host()  # [M]
    value: Tensor  # [M], or of each stream [M, S]
    atom: Tensor = on_host()  # [M] long: equal in terms that are compared with each other
    kl_factor: list[float]  # [M] of the KL to the reference
    stream_share: Tensor  # [M, S] of the elements of each stream that are noised
    streams: Streams = shared(default=())

    def stream(self, number: int) -> ForwardTerms:
        """One stream of them."""
        there = columns(self.streams, number)
        return replace(
            self, clean=self.clean[:, there], state=self.state[:, there], target=self.target[:, there],
            share=self.stream_share[:, number], value=self.value[:, number], streams=(),
        )  # fmt: skip


P = TypeVar("P", StepTerms, ForwardTerms)
LOSSES = ("actor/pg_loss", "actor/policy_loss")  # reported of each stream


def by_stream(loss: Callable[[P, FlowRoles], Loss], part: P, roles: FlowRoles) -> Loss:
    """A loss of terms, of which streams with advantages of their own count alike: networks run once for all."""
    from burnish.diffusion.roles import StreamOf

    if not part.streams:
        return loss(part, roles)
    found: dict[tuple[str, float | None], Tensor] = {}
    each: dict[str, Loss] = {}
    for i, (name, _) in enumerate(part.streams):
        asked = StreamOf(part.state, columns(part.streams, i), found)
        each[name] = loss(part.stream(i), roles.of_stream(asked))
    losses = list(each.values())
    metrics: dict[str, Any] = {}
    for name in losses[0].metrics:
        totals, counts = zip(*(one.metrics[name] for one in losses), strict=True)
        metrics[name] = sum(totals), sum(counts)
    metrics |= {f"{what}/{name}": one.metrics[what] for name, one in each.items() for what in LOSSES if what in metrics}
    extremes = {}
    for name in losses[0].extremes:
        values = torch.stack([one.extremes[name] for one in losses])
        extremes[name] = values.amin() if name.endswith("_min") else values.amax()
    return Loss(torch.stack([one.total for one in losses]).mean(), metrics, extremes)


def compare(scored: Scored, value: Tensor, members: Tensor) -> tuple[ComparedSamples, Tensor]:
    """Samples that are compared, with what each is worth, and which rows they are. Rows without any reward are left
    out.

    Args:
        scored: [B] rollouts.
        value: [B] what each is worth, or of each stream [B, S].
        members: [R, M] long, rows of ``scored`` that are compared with each other, -1 where there is none.
    """
    present = (members >= 0) & ~scored.scores.missing.cpu()[members]
    members, present = members[present.any(1)], present[present.any(1)]
    first = members[:, 0]
    samples = ComparedSamples(
        conditioning=scored.trace.conditioning.select(first),
        noised=at(scored.trace.noised, first),
        value=value[members],
        present=present,
        uid=[scored.prompts[i].uid for i in first.tolist()],
        sample=scored.sample[members],
        seed=scored.seed,
        update=scored.update,
    )
    return samples, members


def judge(
    scored: Scored, value: Tensor, levels: DrawLevels, *, members: Tensor | None = None, shared_noise: bool = False
) -> JudgedSamples:
    """Join samples with their credit and draw the noise levels to train at.

    Args:
        scored, value, members: see ``compare``; None puts each sample into a row of its own.
        levels: where the noise levels come from.
        shared_noise: give the members of a row the same noise.
    """
    samples, members = compare(scored, value, torch.arange(len(scored))[:, None] if members is None else members)
    keys = [
        (samples.seed, "time", samples.update, u, s)
        for u, s in zip(samples.uid, samples.sample[:, 0].tolist(), strict=True)
    ]
    return JudgedSamples(
        **vars(samples),
        clean=at(scored.trace.latents, members),
        time=levels(keys, scored.trace.schedule) if keys else scored.trace.schedule.new_zeros(0, 1),
        kl_factor=[[scored.scores.kl_factor[i] for i in row] for row in members.tolist()],
        shared_noise=shared_noise,
        streams=scored.trace.streams,
    )


def groups_of(scored: Scored) -> Tensor:
    """[G, M] long: the rows of each group, groups in rising order of ids, -1 where a group has fewer than M."""
    rows = [(scored.group == number).nonzero().flatten() for number in scored.group.unique()]
    return pad_sequence(rows, batch_first=True, padding_value=-1)


def take(given: OfflineSamples, levels: DrawLevels, value: Tensor) -> JudgedSamples:
    """Finished images to learn from; the members of a row share noise and time.

    Args:
        given: [B] rows of M images.
        levels: where the noise levels come from.
        value: [M] what the members of each row are worth.
    """
    count, members = given.latents.shape[:2]
    # a small data set may fill a batch with the same image twice: with other noise, then
    times = [given.uid[:row].count(uid) for row, uid in enumerate(given.uid)]
    first = torch.tensor(times)[:, None] * members
    keys = [(given.seed, "time", given.update, u, s) for u, s in zip(given.uid, first[:, 0].tolist(), strict=True)]
    return JudgedSamples(
        conditioning=given.conditioning,
        clean=given.latents,
        noised=given.noised,
        value=value.expand(count, members),
        present=torch.ones(count, members, dtype=torch.bool),
        time=levels(keys, given.schedule),
        uid=given.uid,
        sample=first + torch.arange(members),
        kl_factor=[[1.0] * members] * count,
        shared_noise=True,
        seed=given.seed,
        update=given.update,
    )


def without_prompts(judged: JudgedSamples, share: float) -> JudgedSamples:
    """The same samples, about a ``share`` of them with the negative prompt, empty by default, in place of their own."""
    keys = [
        (judged.seed, "no prompt", judged.update, u, int(s))
        for u, s in zip(judged.uid, judged.sample[:, 0], strict=True)
    ]
    dropped = random.uniform(1, keys)[:, 0] < share
    both = Requests.cat([judged.conditioning, unprompted(judged.conditioning)])
    rows = torch.arange(len(judged))
    return replace(judged, conditioning=both.select(torch.where(dropped, rows + len(judged), rows)))
