"""The ranks of the trainer behind the verbs of the loop, for the driver, which holds nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from burnish.rl.algorithm import Metrics
from burnish.rollout.requests import RolloutRequest, split
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.calls import Call, all_done
from burnish.runtime.prompt_numbers import PromptNumbers
from burnish.runtime.rollout_result import joined
from burnish.types.rollout import Collected, RemoteBatch, Rollouts
from burnish.utils.errors import Cancelled
from burnish.utils.timer import Stopwatch


class TrainerGroup:
    """Every verb is one call of all ranks; what it works on stays with them until the next one."""

    def __init__(
        self, ranks: ActorGroup, watch: Stopwatch, published: Callable[[int], None], numbers: PromptNumbers
    ) -> None:
        """Args: ``published`` brings a version from the ranks to whoever samples; ``numbers`` are the prompts'."""
        self.ranks, self.watch, self.published, self.numbers = ranks, watch, published, numbers
        self.version = 0  # that was published last
        self.credited: list[float] | None = None  # advantage of each sample of the last batch

    def annotate(self, scored: Collected) -> None:
        """Hand the batch out, by reference, and add what needs a forward pass."""
        self.ranks.call("annotate", None if isinstance(scored, RemoteBatch) else self.numbers.numbered(scored))

    def credit(self, annotated: None) -> tuple[None, Metrics]:
        """Rewards to training signal."""
        metrics, self.credited = self.ranks.call("credit")[0]
        return None, metrics

    def update(self, batch: None, update: int) -> Metrics:
        """Learn."""
        found = self.ranks.call("update", update)
        metrics, seconds, _ = found[0]
        self.watch.add(seconds, {f"train {rank}": spans for rank, (_, _, spans) in enumerate(found)})
        return dict(metrics)

    def publish(self, version: int) -> None:
        """Sample with these weights from now on."""
        self.ranks.call("publish", version)
        self.version = version
        self.published(version)


class TrainerRolloutWorker:
    """The ranks sample themselves, each its part, with weights that are gathered for that long."""

    def __init__(
        self,
        ranks: ActorGroup,
        watch: Stopwatch,
        stop: Callable[[], bool],
        numbers: PromptNumbers,
        *,
        together: int = 1,
    ) -> None:
        """Args: ``stop`` says whether samples that nobody has learned from are to be cancelled; ``numbers`` are the
        prompts'; ``together`` is how many neighbouring ranks draw the same, of which the first one answers."""
        self.ranks, self.watch, self.stop, self.numbers = ranks, watch, stop, numbers
        self.together = together

    def generate(self, request: RolloutRequest) -> Rollouts:
        """Samples of the present weights.

        Raises:
            Cancelled: the run is to stop.
        """
        size = len(self.ranks) // self.together
        groups: list[RolloutRequest | None] = [*split(self.numbers.numbered(request), size)]
        groups += [None] * (size - len(groups))
        parts = [part for part in groups for _ in range(self.together)]
        calls = [self.ranks.submit_one(rank, "generate", part, keep=True) for rank, part in enumerate(parts)]
        if cancelled(self.ranks, calls, self.stop):
            raise Cancelled
        found = [(call.result(), call.kept[rank]) for rank, call in enumerate(calls)]
        rollouts, seconds = joined(found, self.numbers)
        self.watch.add(seconds, {f"train {rank}": one.spans for rank, (one, _) in enumerate(found) if one is not None})
        return rollouts


def cancelled(ranks: ActorGroup, calls: Sequence[Call], stop: Callable[[], bool]) -> bool:
    """Wait for calls of samples; if the run is to stop meanwhile, have the ranks cancel them: whether they did.

    Raises:
        Exception: see ``Call.results``.
    """
    cancel: list[Call] = []

    def check() -> None:
        if not cancel and stop():
            cancel.append(ranks.submit("cancel", beside=True))

    all_done(calls, check)
    for call in cancel:
        call.results()
    return bool(cancel)


class RankSource:
    """What the ranks learn is data of the user: each rank reads the batch itself, and the driver learns its size."""

    def __init__(self, ranks: ActorGroup) -> None:
        self.ranks = ranks

    def collect(self, update: int) -> RemoteBatch:
        batch: RemoteBatch = self.ranks.call("collect", update)[0]
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the ranks save where their own streams stand."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing; see ``state_dict``."""
