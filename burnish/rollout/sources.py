"""Where batches come from: one per policy update, and a state to resume from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from burnish.data.stream import Stream
from burnish.rewards.normalising import Normaliser, restore, saved
from burnish.rollout.prompt_schedule import PromptSchedule, refuse_ahead
from burnish.rollout.requests import RolloutWorker
from burnish.types.rollout import Collected, OfflineJudgements, OfflineResponses, OfflineSamples, Rollouts, Scored
from burnish.utils.timer import Stopwatch

Given = OfflineSamples | OfflineResponses | OfflineJudgements | Scored
Prepare = Callable[[list[Any], int], Given]  # by records, and the update that they are for


class Source(Protocol):
    """Online sampling, a data set of finished samples, or sampling that runs ahead of the loop."""

    def collect(self, update: int) -> Collected:
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

    def collect(self, update: int) -> Rollouts:
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

    def collect(self, update: int) -> Given:
        records = [record for _ in range(self.batches) for record in self.stream.next_batch(update)]
        with self.watch("encode"):
            return self.prepare(records, update)
