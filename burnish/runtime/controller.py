"""Ray controller: implements the controller protocol with actor groups, and restarts what was lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from ray.exceptions import ObjectLostError

from burnish.checkpoint.files import Checkpoint, damage
from burnish.checkpoint.store import CheckpointStore
from burnish.config import RunConfig
from burnish.controller import Controller
from burnish.metrics import Stopwatch
from burnish.rewards.scoring import RewardsFailing
from burnish.rl.algorithm import Metrics
from burnish.rollout.pipelined import PipelinedSource
from burnish.rollout.sources import OnlineSource, RolloutRequest, split
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.calls import Call, RestartLimit, Unschedulable, WorkerDied, WorkerTimeout, all_done
from burnish.runtime.cluster import Pool, cluster
from burnish.runtime.rollout_pool import RolloutPool
from burnish.runtime.transfer import PromptNumbers, joined
from burnish.runtime.weight_sync import WeightSync
from burnish.runtime.weights import Mismatch
from burnish.runtime.workers import RolloutActor, TrainerActor, reward_group
from burnish.training.profiling import nsight
from burnish.training.ranks import RanksLost
from burnish.types.rollout import Collected, RemoteBatch, Rollouts
from burnish.utils.errors import Cancelled

log = logging.getLogger(__name__)

ENDS = (
    Unschedulable,
    RestartLimit,
    WorkerTimeout,
    Mismatch,
    RewardsFailing,
)  # after which nobody can sample any more, though the trainer is well


CLOSING = 30.0  # seconds that threads may take to see that their workers have been ended


class TrainerGroup:
    """Every verb is one call of all ranks; what it works on stays with them until the next one."""

    def __init__(
        self, ranks: ActorGroup, watch: Stopwatch, published: Callable[[int], None], numbers: PromptNumbers
    ) -> None:
        """Args: ``published`` brings a version from the ranks to whoever samples; ``numbers`` are the prompts'."""
        self.ranks, self.watch, self.published, self.numbers = ranks, watch, published, numbers
        self.version = 0  # that was published last
        self.credited: list[float] | None = None  # advantage of each sample of the last batch

    def compute_logprobs(self, scored: Collected) -> None:
        """Hand the batch out, by reference, and add what needs a forward pass."""
        self.ranks.call("compute_logprobs", None if isinstance(scored, RemoteBatch) else self.numbers.numbered(scored))

    def compute_advantages(self, annotated: None) -> tuple[None, Metrics]:
        """Rewards to training signal."""
        metrics, self.credited = self.ranks.call("compute_advantages")[0]
        return None, metrics

    def update(self, batch: None, update: int) -> Metrics:
        """Learn."""
        found = self.ranks.call("update", update)
        metrics, seconds, _ = found[0]
        self.watch.add(seconds, {f"train {rank}": spans for rank, (_, _, spans) in enumerate(found)})
        return dict(metrics)

    def sync_weights(self, version: int) -> None:
        """Sample with these weights from now on."""
        self.ranks.call("assembly.workers.sync_weights", version)
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

    def rollout(self, update: int) -> RemoteBatch:
        return self.ranks.call("rollout", update)[0]  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the ranks save where their own streams stand."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing; see ``state_dict``."""


class RayController(Controller):
    """The driver of a run: it leads the workers, and holds prompts and plans, but no networks and no samples."""

    def __init__(self, config: RunConfig, store: CheckpointStore) -> None:
        super().__init__(config, store, role="controller")
        self.workers: TrainerGroup
        self._saving = 0.0
        self._numbers = PromptNumbers(lambda: self.assembly.train_prompts)
        self._source: OnlineSource | PipelinedSource | RankSource
        self.trainers: ActorGroup
        self.samplers: RolloutPool | None = None
        self._end: Exception | None = None  # of a weight sync, until somebody is to sample
        self._stack = ExitStack()
        self._started = False  # whether there is a trainer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._stack:
            if kind is not None and issubclass(kind, Exception) and self._started:
                try:
                    self.settle()
                except Exception as failed:
                    log.error("%s", failed)

    @property
    def saving(self) -> float:
        return self._saving

    @cached_property
    def _pools(self) -> dict[str, Pool]:
        """Capacity of the cluster, which is reserved by the first use."""
        return self._stack.enter_context(cluster(self.config.ray, self.config.pools))

    def gpu_memory(self) -> dict[str, int]:
        networks = [pool for name, pool in self._pools.items() if name != "reward"]
        return {pool.name: found for pool in networks if (found := pool.gpu_memory()) is not None}

    def check(self) -> None:
        """Start all workers, which load what they need."""
        config, enter, pools = self.config, self._stack.enter_context, self._pools
        self._stack.callback(self._join)  # a thread that waits for samples must not outlive the connection to Ray
        judges = enter(reward_group(pools["reward"], config)).handles if "reward" in pools else []
        versions = config.async_rollout.lag + 1
        trained = config if config.pools.rollout is None else config.trainer_config
        self.trainers = enter(
            ActorGroup(
                pools["train"],
                TrainerActor,
                [(trained, judges, versions)] * pools["train"].size,
                collective=True,
                nsight=nsight(config.profiler, "trainer"),
            )
        )
        self._started = True
        self.workers = TrainerGroup(self.trainers, self.watch, self._published, self._numbers)
        checked = self._checking()
        workers = None
        if "rollout" in pools:
            size = pools["rollout"].size
            workers = enter(
                ActorGroup(
                    pools["rollout"],
                    RolloutActor,
                    [(config, judges)] * size,
                    collective=False,
                    nsight=nsight(config.profiler, "rollout"),
                )
            )
        try:
            self.items = checked.results()[0]
        except (RanksLost, WorkerDied) as error:
            self.recover(error)
        if workers is not None:
            self.samplers = RolloutPool(
                workers,
                WeightSync(self.trainers, workers, config.ray.call_timeout),
                config.ray,
                needed=self._needed,
                add_phases=self.watch.add,
                stop=lambda: self.assembly.stop.asked(),
                numbers=self._numbers,
            )
            self._stack.callback(self.samplers.close)
        self._source = self._make_source()
        self.source = self
        self._first = self._source.state_dict()

    def _join(self) -> None:
        source = vars(self).get("_source")
        if isinstance(source, PipelinedSource):
            source.join(CLOSING)

    def _checking(self) -> Call:
        """Have the ranks load everything: each returns the number of training prompts or records."""
        return self.trainers.submit("check", seconds=self.config.ray.start_timeout, option="ray.start_timeout")

    def _make_source(self) -> OnlineSource | PipelinedSource | RankSource:
        config, assembly = self.config, self.assembly
        if not config.online:
            return RankSource(self.trainers)
        if assembly.measures_prompts:  # by a processor, and here is none
            places = self.trainers.call_one(0, "learnable")
            assembly.learnable_prompts = assembly.train_prompts.take(places)
        if self.samplers is None:
            return OnlineSource(
                assembly.prompt_schedule,
                TrainerRolloutWorker(
                    self.trainers,
                    self.watch,
                    lambda: self.assembly.stop.asked(),
                    self._numbers,
                    together=config.sampled_together,
                ),
                assembly.normaliser,
            )
        if config.async_rollout.depth == 0:
            return OnlineSource(assembly.prompt_schedule, self.samplers, assembly.normaliser)
        return PipelinedSource(
            assembly.prompt_schedule,
            self.samplers,
            config.async_rollout,
            steps=config.steps,
            timeout=config.ray.call_timeout,
            normaliser=assembly.normaliser,
        )

    def resume(self, checkpoint: Checkpoint | None) -> None:
        source = self._first if checkpoint is None else self.trainers.call("resume", checkpoint)[0]
        self._source.load_state_dict(source)
        self.workers.sync_weights(0 if checkpoint is None else checkpoint.update)
        self.watch.drain()  # what came before the first update belongs to none
        self._announce()

    def damage(self, checkpoint: Checkpoint) -> str:
        try:
            return str(max(self.trainers.call("damage", checkpoint)))
        except (WorkerDied, WorkerTimeout):  # so will what comes next
            return damage(checkpoint)

    def evaluate(self, target: Path | None, guidance: float | None) -> Metrics:
        if self.assembly.stop.asked():
            raise Cancelled
        call = self.trainers.submit("evaluate", target, guidance)
        cancelled(self.trainers, [call], lambda: self.assembly.stop.asked())
        found: Metrics | None = call.results()[0]
        if found is None:
            raise Cancelled
        return dict(found)

    def save(self, update: int, score: float | None, unvalidated: Metrics | None) -> Path:
        return self._save(update, score, unvalidated, self._source.state_dict())

    def validated(self, update: int, score: float | None) -> None:
        self.trainers.call("controller.validated", update, score)

    def raise_failed(self) -> None:
        if self.config.checkpoint.asynchronous:
            self.trainers.call("controller.raise_failed")

    def settle(self) -> None:
        if self.config.checkpoint.asynchronous and self.trainers.ended is None:
            self.trainers.call("controller.settle")

    def recover(self, error: Exception) -> None:
        """Start the trainer again after a loss of its ranks; before any other end, save what was learned."""
        while self._lost(error):
            gone = isinstance(error, ObjectLostError)
            why = "samples were lost with the machine that held them" if gone else error
            log.warning("%s; the trainer is started again, from the last checkpoint", why)
            self.trainers.end(error)
            if self.samplers is not None:
                self.samplers.reset()  # before there is a trainer again that threads of before could ask
            self.trainers.rebuild()
            try:
                self.items = self._checking().results()[0]
                return
            except (RanksLost, WorkerDied) as again:
                error = again
        if isinstance(error, ENDS) and self.trainers.ended is None:
            source: Any = self._source
            state = source.finished_state if isinstance(source, PipelinedSource) else source.state_dict
            self._rescue(self.workers.version, lambda version: self._save(version, None, None, state()))
        raise error

    def _lost(self, error: Exception) -> bool:
        """Whether ranks of the trainer are gone or hang, or samples are lost that they were to learn from."""
        if isinstance(error, WorkerDied | WorkerTimeout):
            return error.pool == self.trainers.name
        return isinstance(error, RanksLost | ObjectLostError)

    def _save(self, update: int, score: float | None, unvalidated: Metrics | None, source: dict[str, Any]) -> Path:
        start, online = time.perf_counter(), self.config.online
        with self.watch("save_checkpoint"):
            path: Path = self.trainers.call("save", update, score, unvalidated, source if online else None)[0]
        self._saving = max(self._saving, time.perf_counter() - start)
        return path

    def _needed(self, version: int) -> bool:
        """Whether anything will be sampled by the weights of a version."""
        source = self._source
        return source.needs(version) if isinstance(source, PipelinedSource) else version < self.config.steps

    def _published(self, version: int) -> None:
        try:
            if self.samplers is not None:
                seconds = self.samplers.sync_weights(version)
                self.watch.add({f"update_weights/{phase}": value for phase, value in seconds.items()})
            if isinstance(self._source, PipelinedSource):
                self._source.published(version)
        except ENDS as error:
            self._end = error  # the update that is behind these weights is written down first

    def rollout(self, update: int) -> Collected:
        """The batch of an update, unless something has failed since the last one."""
        self._announce()
        return self._source.rollout(update)

    def _announce(self) -> None:
        if self._end is not None:
            raise self._end
