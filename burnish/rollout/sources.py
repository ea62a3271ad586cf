"""Where batches come from: which samples are requested of engines, groups that teach nothing, and how to resume."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from itertools import chain, pairwise
from typing import Any, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor

from burnish.data.stream import Stream
from burnish.metrics import Stopwatch, moved
from burnish.options.data import FilterOptions
from burnish.rewards.normalising import Normaliser, restore, saved
from burnish.rewards.scoring import Collector, Scorer
from burnish.rl.advantages import group_statistics
from burnish.types.batch import Batch, device_of, shared
from burnish.types.completion import PartialResponse
from burnish.types.rollout import (
    Collected,
    Failure,
    Prompt,
    Rollouts,
)
from burnish.types.samples import Ran
from burnish.utils import random
from burnish.utils.errors import Cancelled, UserError

R = TypeVar("R", bound=Rollouts)


@dataclass(kw_only=True)
class RolloutRequest(Batch):
    """Which samples to generate, with which weights. The rows of a group stand next to each other."""

    prompts: list[Prompt]  # [B]
    group: Tensor  # [B] long: its number in the batch, from 0
    sample: Tensor  # [B] long: number of the sample among those of its prompt
    groups: int = shared()  # in the batch, of which this may be a chunk
    update: int = shared()  # the policy update that it is for; every seed depends on it
    version: int = shared()  # policy updates behind the weights that are to sample
    ahead: list[Prompt] = shared(default_factory=list)  # prompts of the request after it, which may be read by then
    partial: list[PartialResponse | None] = field(default_factory=list)  # [B] what goes on; None where a row begins

    def __post_init__(self) -> None:
        self.partial = self.partial or [None] * len(self.prompts)

    def beside(self, put_aside: Sequence[RolloutRequest]) -> RolloutRequest:
        """With rows of earlier requests, which go on as groups behind its own."""
        if not put_aside:
            return self
        further = [replace(one, group=one.group + self.groups) for one in put_aside]
        together = RolloutRequest.cat([self, *further])
        groups, group = torch.unique_consecutive(together.group, return_inverse=True)
        return replace(together, group=group, groups=len(groups))


class RolloutWorker(Protocol):
    """Samples and scores. What it gives for a group does not depend on other groups."""

    def generate(self, request: RolloutRequest) -> Any:
        """The scored rollouts, in the order of the request's rows."""


def numbered(
    prompts: Sequence[Prompt], n: int, seen: Counter[str] | None = None
) -> tuple[list[Prompt], Tensor, Tensor]:
    """``n`` rows for each prompt: their prompts, groups and sample numbers.

    A prompt that occurs again gets further samples, not the same ones.

    Args:
        prompts: each makes a group.
        n: samples of each.
        seen: samples that a prompt has already, by its uid; those made here are added.

    Returns:
        Prompts [B], group [B] long, sample [B] long.
    """
    seen = Counter() if seen is None else seen
    sample: list[int] = []
    for prompt in prompts:
        sample += range(seen[prompt.uid], seen[prompt.uid] + n)
        seen[prompt.uid] += n
    rows = [prompt for prompt in prompts for _ in range(n)]
    return rows, torch.arange(len(prompts)).repeat_interleave(n), torch.tensor(sample, dtype=torch.long)


def group_starts(group: Tensor) -> list[int]:
    """The row at which each group of [B] numbers begins, in order, and at last B: rows of a group are neighbours."""
    return [0, *torch.unique_consecutive(group, return_counts=True)[1].cumsum(0).tolist()]


Purpose = Literal["rollout", "greedy", "validation", "sample", "trial"]  # draws of one are never those of another


@dataclass
class Stop:
    """Whether sampling is to be cancelled, as nobody would learn from it."""

    asked: Callable[[], bool] = lambda: False
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # what can't ask: a request ends it, by Cancelled

    def waiting(self) -> AbstractContextManager[None]:
        """Entered by what can't ask."""
        return self.around()

    def check(self) -> None:
        """Called between steps of sampling, and while others are waited for.

        Raises:
            Cancelled: the run is to stop.
        """
        moved()
        if self.asked():
            raise Cancelled


@dataclass(frozen=True, kw_only=True)
class Job:
    """Which samples to generate. Row i is sample ``sample[i]`` of prompt ``prompts[i]``."""

    prompts: list[Prompt]  # [B]
    group: Tensor  # [B] long: rows of a prompt stand next to each other
    sample: Tensor  # [B] long
    purpose: Purpose
    update: int
    check_cancelled: Callable[[], None] = lambda: None  # called before every step or token; what it raises ends the job
    noise: tuple[random.Part, ...] | None = None  # of a suite: seeds in place of the run's, the same in every run

    def keys(self, seed: int) -> list[tuple[random.Part, ...]]:
        """What seeds the draws of every row, but for the number of the sample.

        Args:
            seed: of the run.
        """
        if self.noise is None:
            return [(seed, self.purpose, self.update, prompt.uid) for prompt in self.prompts]
        return [(*self.noise, prompt.question.uid) for prompt in self.prompts]

    def seeds(self, seed: int) -> dict[str, Any]:
        """The same for a record: with the prompt and the number of a sample it can be drawn again."""
        return {"seed": seed, "purpose": self.purpose, "drawn_for": self.update}

    @classmethod
    def groups(cls, prompts: Sequence[Prompt], n: int, **options: Any) -> Self:
        """``n`` samples of each prompt. A prompt that occurs again gets further samples, not the same ones."""
        rows, group, sample = numbered(prompts, n)
        return cls(prompts=rows, group=group, sample=sample, **options)

    def select(self, rows: slice) -> Self:
        """Some of its rows."""
        return replace(self, prompts=self.prompts[rows], group=self.group[rows], sample=self.sample[rows])

    def share(self, groups: Callable[[int], slice]) -> Self:
        """The rows of some prompts, in order; there may be none.

        Args:
            groups: which of N prompts.
        """
        starts = group_starts(self.group)
        own = groups(len(starts) - 1)
        return self.select(slice(starts[own.start], starts[own.stop]))


def collector(job: Job, scorer: Scorer, *, one_by_one: bool, **more: Any) -> Collector:
    """Takes a job's samples as they are finished; see ``Collector``. Those of validation belong to no update."""
    update = job.update if job.purpose == "rollout" else 0
    return Collector(scorer, job.prompts, job.group.tolist(), update=update, one_by_one=one_by_one, **more)


def split(request: RolloutRequest, parts: int) -> list[RolloutRequest]:
    """Chunks of full groups, in order and as even as they get; fewer of them where there are fewer groups."""
    starts = group_starts(request.group)
    groups = len(starts) - 1
    count = min(parts, groups)
    bounds = [starts[groups * part // count] for part in range(count + 1)]
    after = [len(request.ahead) * part // count for part in range(count + 1)]  # whoever has a chunk gets the next one
    return [
        replace(request.select(slice(*rows)), ahead=request.ahead[slice(*next_ones)])
        for rows, next_ones in zip(pairwise(bounds), pairwise(after), strict=True)
    ]


LISTS = ("failures", "glimpses", "quotes", "execution", "put_aside")  # of rollouts, about all of their samples


def join(parts: Sequence[R]) -> R:
    """Rollouts of chunks, in order, as those of the request that was split, with its metrics up to rounding."""
    if len(parts) == 1:
        return parts[0]
    # what has lost all of its rows may have been sampled in other steps than the rest
    there = [part for part in parts if len(part)] or list(parts[:1])
    metrics, counts = _joined(parts)
    lists: Any = {name: list(chain.from_iterable(getattr(part, name) for part in parts)) for name in LISTS}
    oldest = min(part.version for part in parts)
    return replace(type(parts[0]).cat(there), metrics=metrics, counts=counts, version=oldest, **lists)


def _joined(parts: Sequence[Rollouts]) -> tuple[dict[str, float], dict[str, float]]:
    """Means by what they were taken over; of every other metric the largest, or the smallest where it is one."""
    metrics: dict[str, float] = {}
    counts: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part.metrics):
        having = [part for part in parts if name in part.metrics]
        if any(name not in part.counts for part in having):
            metrics[name] = (min if name.endswith("/min") else max)(part.metrics[name] for part in having)
            continue
        taken = [part for part in having if part.counts[name]]
        counts[name] = sum(part.counts[name] for part in taken)
        total = sum(part.metrics[name] * part.counts[name] for part in taken)
        metrics[name] = total / counts[name] if taken else math.nan
    return metrics, counts


def varied(rollouts: Rollouts) -> Tensor:
    """Rows of the groups that have different rewards: [M], rising. Equality is exact; missing ones don't count."""
    scores = rollouts.scores
    groups = group_statistics(scores.reward.cpu(), rollouts.group.cpu(), scores.missing.cpu())
    return (~groups.constant)[groups.label].nonzero().flatten()


def filled_batch(
    kept: Sequence[R], last: R, sampled: Sequence[tuple[Tensor, list[Failure], list[dict[str, Ran]]]], groups: list[int]
) -> R:
    """The groups that several batches gave to an update, in the order of drawing; none where they gave none.

    Its metrics tell how many batches were drawn, what was dropped, and the mean reward of all that was sampled. What
    goes on is what the last batch put aside.

    Args:
        kept: what each batch gave.
        last: the last batch.
        sampled: rewards, failures and execution of all batches.
        groups: how many were kept, dropped, and left out at the end.
    """
    known, failures, ran = zip(*sampled, strict=True)
    rewards, names = torch.cat(known), ("kept", "dropped", "spare")
    metrics = last.metrics | {"train/num_gen_batches": float(len(sampled))}
    metrics |= {f"train/{name}_groups": float(count) for name, count in zip(names, groups, strict=True)}
    if len(rewards):
        metrics["train/sampled_reward/mean"] = float(rewards.mean())
    return replace(
        type(last).cat(kept) if kept else last.select([]), metrics=metrics,
        failures=list(chain.from_iterable(failures)), execution=list(chain.from_iterable(ran)),
        version=min(part.version for part in kept or [last]), put_aside=last.put_aside,
    )  # fmt: skip


@dataclass
class Replay:
    """The newest groups with different rewards, which take the places of those that taught nothing."""

    size: int
    seed: int
    groups: tuple[Any, ...] = ()  # rollouts of a group each, the oldest first, with their traces in the host's memory

    def completed(self, sampled: R, wanted: int) -> R:
        """Rollouts of an update, with groups of earlier ones up to ``wanted``; what was sampled is kept for later."""
        ids = sampled.group.unique().tolist()
        drawn = self._drawn(wanted - len(ids), sampled.update)
        own: Any = {field.name: getattr(sampled, field.name) for field in fields(sampled) if "shared" in field.metadata}
        none: Any = {"metrics": {}, "counts": {}} | {name: [] for name in LISTS}
        for number in ids:
            group: Any = sampled.select((sampled.group == number).nonzero().flatten())
            kept = replace(group, group=torch.zeros_like(group.group), trace=group.trace.to("cpu"), **none)
            self.groups = (*self.groups, kept)
        self.groups = self.groups[-self.size :]
        device = device_of(sampled.trace)  # type: ignore[attr-defined]
        again = [
            replace(one, group=one.group + place, trace=one.trace.to(device))
            for place, one in enumerate(drawn, len(ids))
        ]
        parts = [sampled, *again] if ids else again or [sampled]
        own["metrics"] |= {"train/replayed_groups": float(len(again))}
        return replace(type(sampled).cat(parts), **own | {"version": min(one.version for one in parts)})

    def _drawn(self, count: int, update: int) -> list[Any]:
        """Some of the groups, without repetition, each with a chance that grows with the spread of its rewards."""
        scores = [(one.scores, one.group.cpu()) for one in self.groups]
        spread = [float(group_statistics(own.reward.cpu(), group, own.missing.cpu()).std) for own, group in scores]
        if count < 1 or not spread:
            return []
        # of exponential waits, the shortest (Efraimidis and Spirakis 2006)
        waits = -random.uniform(len(spread), [(self.seed, "replay", update)])[0].log() / torch.tensor(spread)
        return [self.groups[place] for place in sorted(waits.argsort()[:count].tolist())]


@dataclass(frozen=True, kw_only=True)
class PromptSchedule:
    """Prompts and sample numbers of every update."""

    stream: Stream[Prompt]
    n: int  # samples of a prompt
    rollouts: int = 1  # batches of the stream to an update
    filtering: FilterOptions | None = None
    replay: Replay | None = None
    tells: bool = False  # whether requests tell of the prompts that come next

    @property
    def rounds(self) -> int:
        """Requests for an update at most."""
        return 1 if self.filtering is None else self.filtering.max_num_gen_batches

    def request(
        self, update: int, version: int, seen: Counter[str], put_aside: Sequence[RolloutRequest] = ()
    ) -> RolloutRequest:
        """The next prompts, and what was put aside; ``seen`` counts samples that a prompt has in this update already.

        Those that go on count, too: a prompt that comes again gets other numbers.
        """
        for earlier in put_aside:
            for prompt, number in zip(earlier.prompts, earlier.sample.tolist(), strict=True):
                seen[prompt.uid] = max(seen[prompt.uid], number + 1)
        drawn = [prompt for _ in range(self.rollouts) for prompt in self.stream.next_batch(update, version)]
        prompts, group, sample = numbered(drawn, self.n, seen)
        return RolloutRequest(
            prompts=prompts, group=group, sample=sample, groups=len(drawn), update=update, version=version,
            ahead=self.stream.peek(self.rollouts) if self.tells else [],
        ).beside(put_aside)  # fmt: skip

    def filled(
        self,
        generate: Callable[[RolloutRequest], R],
        update: int,
        version: int,
        put_aside: Sequence[RolloutRequest] = (),
    ) -> R:
        """Rollouts of an update. Where groups are filtered, batches are drawn until enough groups have different
        rewards, but no more than ``rounds``; groups beyond that are left out.

        What was put aside goes on with the first request; what that puts aside with the next one.
        """
        seen: Counter[str] = Counter()
        parts: list[R] = []
        sampled: list[tuple[Tensor, list[Failure], list[dict[str, Ran]]]] = []  # of all, without their traces
        groups, dropped, spare, wanted = 0, 0, 0, self.stream.batch_size * self.rollouts
        while len(sampled) < self.rounds and groups < wanted:
            batch = generate(self.request(update, version, seen, put_aside))
            self.learn(update, batch)
            if self.filtering is None:
                return batch
            put_aside = batch.put_aside
            sampled.append((batch.scores.reward[~batch.scores.missing], batch.failures, batch.execution))
            kept = batch.select(varied(batch))
            ids, label = torch.unique(kept.group, return_inverse=True)
            dropped += len(torch.unique(batch.group)) - len(ids)
            spare = max(groups + len(ids) - wanted, 0)
            rows = (label < len(ids) - spare).nonzero().flatten()
            if len(rows):
                parts.append(replace(kept.select(rows), group=label[rows] + groups))
            groups += len(ids) - spare
        found = filled_batch(parts, batch, sampled, [groups, dropped, spare])
        return found if self.replay is None else self.replay.completed(found, wanted)

    @property
    def replayable(self) -> tuple[Any, ...]:
        """Groups that may be replayed."""
        return () if self.replay is None else self.replay.groups

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the stream stood, with the groups that may be replayed."""
        self.stream.load_state_dict(state)
        if self.replay is not None:
            self.replay.groups = tuple(state.get("replay", ()))

    def learn(self, update: int, sampled: Rollouts) -> None:
        """Tell a sampler of the user what was rewarded in an update."""
        if self.stream.sampler is not None:
            self.stream.sampler.add(update, sampled)

    def history(self, last: int | None = None) -> dict[str, Any]:
        """What a sampler has been told of updates up to ``last``, for a checkpoint; nothing where there is none."""
        sampler = self.stream.sampler
        return {} if sampler is None else {"history": sampler.state(last)}


Prepare = Callable[[list[Any], int], Collected]  # by records, and the update that they are for


class Source(Protocol):
    """Online sampling, a data set of finished samples, or sampling that runs ahead of the loop."""

    def rollout(self, update: int) -> Collected:
        """The batch of policy update ``update``, counted from 1.

        Raises:
            Cancelled: the run is to stop. What is saved now is as it was before: a resumed run collects the same.
        """


class OnlineSource:
    """Samples of the current weights: every batch is requested when it is needed, and waited for."""

    def __init__(
        self, schedule: PromptSchedule, rollout_worker: RolloutWorker, normaliser: Normaliser | None = None
    ) -> None:
        self.schedule, self.stream, self.rollout_worker = schedule, schedule.stream, rollout_worker
        self.normaliser = normaliser  # of rewards
        # where the stream stands behind the last batch that was handed out, what its sampler was told by then, and
        # what may be replayed
        self._after = self.stream.position, schedule.history(), schedule.replayable

    def rollout(self, update: int) -> Rollouts:
        collected: Rollouts = self.schedule.filled(self.rollout_worker.generate, update, update - 1)
        self._after = self.stream.position, self.schedule.history(update), self.schedule.replayable
        return collected if self.normaliser is None else self.normaliser.learned(collected)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream goes on; prompts of an unfinished batch are drawn again."""
        position, told, replayable = self._after
        return self.stream.state_dict(position) | told | saved(self.normaliser) | {"replay": list(replayable)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("ahead") or state.get("put_aside"):
            raise UserError(
                "the checkpoint holds samples that were made ahead, which this run would not use; resume with the "
                "runtime=ray and the async_rollout.depth that it was made with"
            )
        restore(state, self.normaliser)
        self.schedule.load_state_dict(state)
        self._after = self.stream.position, self.schedule.history(), self.schedule.replayable


class OfflineSource:
    """The next records of a stream, as the model has them; one or more batches to an update."""

    def __init__(self, stream: Stream[Any], prepare: Prepare, *, batches: int, watch: Stopwatch) -> None:
        self.stream, self.prepare, self.batches, self.watch = stream, prepare, batches, watch

    def rollout(self, update: int) -> Collected:
        records = [record for _ in range(self.batches) for record in self.stream.next_batch(update)]
        with self.watch("encode"):
            return self.prepare(records, update)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the next batch."""
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)
