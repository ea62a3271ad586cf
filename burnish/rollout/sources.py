"""Where batches come from: which samples are requested, groups that teach nothing, and a state to resume from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from burnish.data.stream import PromptStream, Stream
from burnish.options.data import FilterOptions
from burnish.rewards.normalising import Normaliser, restore, saved
from burnish.rl.advantages import group_statistics
from burnish.rollout.requests import RolloutRequest, RolloutWorker, numbered
from burnish.types.rollout import (
    Collected,
    Failure,
    OfflineJudgements,
    OfflineResponses,
    OfflineSamples,
    Rollouts,
    Scored,
)
from burnish.types.statistics import Execution, joined
from burnish.utils.errors import UserError
from burnish.utils.timer import Stopwatch


def varied(rollouts: Rollouts) -> Tensor:
    """Rows of the groups that have different rewards: [M], rising. Equality is exact; missing ones don't count."""
    scores = rollouts.scores
    groups = group_statistics(scores.reward.cpu(), rollouts.group.cpu(), scores.missing.cpu())
    return (~groups.constant)[groups.label].nonzero().flatten()


def fill(draw: Callable[[], R], wanted: int, most: int) -> R:
    """Draw batches until ``wanted`` groups with different rewards are together, but no more than ``most`` batches.

    Args:
        draw: the next batch, with at least one group; its group ids start from 0.
        wanted: groups; more than these are left out, the last ones first.
        most: batches.

    Returns:
        The groups in the order of drawing, with new ids; fewer, or none, where the batches did not give them. Its
        metrics tell how many batches were drawn, what was dropped, and the mean reward of all that was sampled.
    """
    parts: list[R] = []
    drawn, groups, dropped, spare, rewards = 0, 0, 0, 0, []
    failures: list[Failure] = []
    ran: list[Mapping[str, Execution]] = []
    while drawn < most and groups < wanted:
        batch = draw()
        drawn += 1
        rewards.append(batch.scores.reward[~batch.scores.missing])
        failures += batch.failures
        ran.append(batch.execution)
        kept = batch.select(varied(batch))
        ids, label = torch.unique(kept.group, return_inverse=True)
        dropped += len(torch.unique(batch.group)) - len(ids)
        spare = max(groups + len(ids) - wanted, 0)
        rows = (label < len(ids) - spare).nonzero().flatten()
        if len(rows):
            parts.append(replace(kept.select(rows), group=label[rows] + groups))
        groups += len(ids) - spare
    everything = torch.cat(rewards)
    metrics = {
        "train/num_gen_batches": float(drawn),
        "train/kept_groups": float(groups),
        "train/dropped_groups": float(dropped),
        "train/spare_groups": float(spare),
    }
    if len(everything):
        metrics["train/sampled_reward/mean"] = float(everything.mean())
    whole = type(batch).cat(parts) if parts else batch.select([])
    return replace(whole, metrics=batch.metrics | metrics, failures=failures, execution=joined(ran))


R = TypeVar("R", bound=Rollouts)


@dataclass(frozen=True, kw_only=True)
class PromptSchedule:
    """Prompts and sample numbers of every update."""

    stream: PromptStream
    n: int  # samples of a prompt
    rollouts: int = 1  # batches of the stream to an update
    filtering: FilterOptions | None = None
    tells: bool = False  # whether requests tell of the prompts that come next

    def request(self, update: int, version: int, seen: Counter[str]) -> RolloutRequest:
        """The next prompts; ``seen`` counts the samples that a prompt has in this update already."""
        drawn = [prompt for _ in range(self.rollouts) for prompt in self.stream.next_batch(update, version)]
        prompts, group, sample = numbered(drawn, self.n, seen)
        return RolloutRequest(
            prompts=prompts, group=group, sample=sample, groups=len(drawn), update=update, version=version,
            ahead=self.stream.peek(self.rollouts) if self.tells else [],
        )  # fmt: skip

    def batch(self, generate: Callable[[RolloutRequest], R], update: int, version: int) -> R:
        """Rollouts of an update; if groups are filtered, ``generate`` is called until enough of them are kept."""
        seen: Counter[str] = Counter()
        if self.filtering is None:
            drawn = generate(self.request(update, version, seen))
            self.learn(update, drawn)
            return drawn

        def draw() -> R:
            some = generate(self.request(update, version, seen))
            self.learn(update, some)
            return some

        return fill(draw, self.stream.batch_size * self.rollouts, self.filtering.max_num_gen_batches)

    def learn(self, update: int, sampled: Rollouts) -> None:
        """Tell a sampler of the user what was rewarded in an update."""
        if self.stream.sampler is not None:
            self.stream.sampler.history.add(update, sampled)

    def history(self, last: int | None = None) -> dict[str, Any]:
        """What a sampler has been told of updates up to ``last``, for a checkpoint; nothing where there is none."""
        sampler = self.stream.sampler
        return {} if sampler is None else {"history": sampler.history.state(last)}


def refuse_ahead(state: dict[str, Any]) -> None:
    """Refuse batches that were sampled ahead, where sampling does not run ahead.

    Raises:
        UserError: the checkpoint holds some.
    """
    if state.get("ahead"):
        raise UserError(
            f"the checkpoint holds {len(state['ahead'])} batches that were sampled ahead, which this run would not "
            "use; resume with the runtime=ray and the async_rollout.depth that it was made with"
        )


Given = OfflineSamples | OfflineResponses | OfflineJudgements | Scored
Prepare = Callable[[list[Any], int], Given]  # by records, and the update that they are for


class Source(Protocol):
    """Online sampling, a data set of finished samples, or sampling that runs ahead of the loop."""

    def rollout(self, update: int) -> Collected:
        """The batch of policy update ``update``, counted from 1.

        Raises:
            Cancelled: the run is to stop. What is saved now is as it was before: a resumed run collects the same.
        """
        ...


class SavedSource(Source, Protocol):
    """A source that a run resumes from."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the next batch."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class StreamSource(SavedSource, Protocol):
    """One that draws from a stream in this process, which is all of its state unless it says otherwise."""

    stream: Stream[Any]  # of prompts or records

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)


class OnlineSource(StreamSource):
    """Samples of the current weights: every batch is requested when it is needed, and waited for."""

    def __init__(
        self, schedule: PromptSchedule, rollout_worker: RolloutWorker, normaliser: Normaliser | None = None
    ) -> None:
        self.schedule, self.stream, self.rollout_worker = schedule, schedule.stream, rollout_worker
        self.normaliser = normaliser  # of rewards
        # where the stream stands behind the last batch that was handed out, and what its sampler was told by then
        self._after = self.stream.position, schedule.history()

    def rollout(self, update: int) -> Rollouts:
        collected: Rollouts = self.schedule.batch(self.rollout_worker.generate, update, version=update - 1)
        self._after = self.stream.position, self.schedule.history(update)
        return collected if self.normaliser is None else self.normaliser.learned(collected)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream goes on; prompts of an unfinished batch are drawn again."""
        position, told = self._after
        return self.stream.state_dict(position) | told | saved(self.normaliser)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        refuse_ahead(state)
        restore(state, self.normaliser)
        super().load_state_dict(state)
        self._after = self.stream.position, self.schedule.history()


class OfflineSource(StreamSource):
    """The next records of a stream, as the model has them; one or more batches to an update."""

    def __init__(self, stream: Stream[Any], prepare: Prepare, *, batches: int, watch: Stopwatch) -> None:
        self.stream, self.prepare, self.batches, self.watch = stream, prepare, batches, watch

    def rollout(self, update: int) -> Given:
        records = [record for _ in range(self.batches) for record in self.stream.next_batch(update)]
        with self.watch("encode"):
            return self.prepare(records, update)
