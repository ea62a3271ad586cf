"""What a driver calls on a worker: on a rank of the trainer, on one that samples, and on one that judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import ray
import torch

from burnish.checkpoint.files import Checkpoint, damage
from burnish.checkpoint.store import CheckpointStore
from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.controller import Controller
from burnish.metrics import Span, Stopwatch, collected_metrics
from burnish.options import ScoringOptions
from burnish.rewards.base import NOTHING, AnyReward, RewardInputs
from burnish.rewards.normalising import restore, with_first
from burnish.rewards.scoring import Scorer
from burnish.rl.algorithm import Metrics
from burnish.rollout.sources import RolloutRequest
from burnish.runtime.actor import RankInfo
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.calls import Call, RestartLimit, WorkerDied
from burnish.runtime.cluster import Pool
from burnish.runtime.transfer import Packed, PromptNumbers, RolloutResult, from_saved, generate, resolved, to_save
from burnish.runtime.weights import Receiver, Sender
from burnish.tasks import assemble
from burnish.training.profiling import Profiler, nsight
from burnish.training.ranks import join_ranks
from burnish.types.prompt import Prompt
from burnish.types.rollout import Collected, RemoteBatch, Scores
from burnish.utils.errors import Cancelled
from burnish.utils.random import in_one_order


def _pooled(config: RunConfig, judges: Sequence[Any], place: RankInfo) -> PooledScorer | None:
    """The reward pool's workers as a scorer; None where there are none."""
    if not judges:
        return None
    return PooledScorer(config.rewards, judges, first=place.rank, seconds=config.ray.call_timeout)


class TrainerActor:
    """What a driver calls on a rank. All ranks get the same calls, and return the same unless said otherwise."""

    def __init__(self, place: RankInfo, config: RunConfig, judges: Sequence[Any], versions: int) -> None:
        """Meet the other ranks; no network is loaded yet.

        Args:
            place: among the ranks.
            config: of the run.
            judges: the reward pool's workers; without any, this rank scores what it samples itself.
            versions: how many published versions of the weights may be requested again.
        """
        self.config, self.versions, self.seconds = config, versions, config.ray.call_timeout
        ranks = join_ranks(place.rank, place.size, place.address, place.port, place.device, self.seconds)
        self.ranks = ranks.in_contexts(config.sharding.context_parallel, config.sharding.tensor_parallel)
        store = CheckpointStore(RunFolder(config.output_dir).checkpoints, config.checkpoint, self.ranks)
        self.controller = Controller(config, store, self.ranks, scorer=_pooled(config, judges, place))
        self.assembly = self.controller.assembly
        self.profiler = Profiler(
            config.profiler, role="trainer", rank=place.rank, folder=RunFolder(config.output_dir).profiles,
            watch=self.assembly.watch,
        )  # fmt: skip
        self._numbers = PromptNumbers(lambda: self.assembly.train_prompts)
        self._recorded = 0  # the update that is being recorded, if it is one of those
        self._recording = ExitStack()
        self._batch: Any = None  # of the update that is under way, in the stage that it has reached

    def check(self) -> int:
        """Load everything and find what only the loaded model can tell: the number of training prompts or records."""
        self.assembly.check_data()
        self.controller.check()
        roles = self.assembly.roles
        self.sender = Sender(
            lambda full: roles.sampler_weights(full=full),
            rank=self.ranks.rank,
            versions=self.versions,
        )
        return self.controller.items

    def learnable(self) -> list[int]:
        """Which training prompts are short enough, by their position among all."""
        places = {id(row): place for place, row in enumerate(self.assembly.train_prompts.rows)}
        return [places[id(row)] for row in self.assembly.learnable_prompts.rows]

    def damage(self, checkpoint: Checkpoint) -> str:
        """What is wrong with this rank's part of the files of a checkpoint. Results differ by rank."""
        return damage(checkpoint, self.ranks.rank, self.ranks.size)

    def resume(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Go on from a checkpoint: the state of the source, which the driver has if the run samples.

        The first rank gives it with what was sampled ahead.
        """
        state = checkpoint.load(self.assembly.identity, self.assembly.state_dict())
        source: dict[str, Any] = state.pop("source")
        self.assembly.workers.load_state_dict(state)
        restore(source, self.assembly.normaliser)  # what validations count in
        if not self.config.online:
            self.assembly.source.load_state_dict(source)
            return {}
        return from_saved(source) if self.ranks.rank == 0 else {}

    def generate(self, request: RolloutRequest | None) -> tuple[RolloutResult | None, Packed | None]:
        """Sample and score this rank's own chunk, if there is one and it is not cancelled. Results differ by rank."""
        if request is not None:
            self._record(request.update)
        with suppress(Cancelled):
            return generate(self.assembly, request, self._numbers)
        return None, None

    def cancel(self) -> None:
        """Stop sampling and scoring: the run is to stop."""
        self.assembly.stop.asked = lambda: True

    def rollout(self, update: int) -> RemoteBatch:
        """Read the batch of an update from data, and hold it."""
        self._record(update)
        given: Any = self.assembly.source.rollout(update)
        self._batch = given
        metrics = collected_metrics(given)
        return RemoteBatch(rows=len(given), lengths=given.lengths, version=given.version, metrics=metrics)

    def compute_logprobs(self, scored: Collected | None) -> None:
        """Add what needs a forward pass, to a batch or to what ``collect`` holds."""
        batch: Any = self._batch
        if scored is not None:
            batch = self._numbers.named(resolved(scored, seconds=self.seconds))
        self._record(batch.update)
        self._batch = self.assembly.workers.compute_logprobs(batch)

    def compute_advantages(self) -> tuple[Metrics, list[float] | None]:
        """Make training signal of it: metrics, and the advantage of each sample."""
        self._batch, metrics = self.assembly.workers.compute_advantages(self._batch)
        return metrics, self.assembly.workers.credited

    def update(self, update: int) -> tuple[Metrics, dict[str, float], list[Span]]:
        """Learn from it: metrics, seconds by phase since the last update, and what was done when."""
        batch, self._batch = self._batch, None
        metrics = self.assembly.workers.update(batch, update)
        self._recording.close()
        watch = self.assembly.watch
        return metrics | self.assembly.memory.metrics(), watch.drain(), watch.take_spans()

    def _record(self, update: int) -> None:
        """Record from here to the end of the update, if it is to be and is not yet."""
        if update != self._recorded:
            self._recorded = update
            self._recording.enter_context(self.profiler.during(update))

    def evaluate(self, target: Path | None, guidance: float | None) -> Metrics | None:
        """Evaluate the weights that are exported; the first rank keeps samples. None if that was cancelled."""
        metrics: Metrics | None = None
        with torch.no_grad(), suppress(Cancelled):
            metrics = self.controller.evaluate(target, guidance)
        self.assembly.watch.drain()
        return metrics

    def save(
        self, update: int, score: float | None, unvalidated: Metrics | None, source: dict[str, Any] | None
    ) -> Path:
        """Write a checkpoint, with the driver's source in the place of this rank's own if there is one."""
        state = self.assembly.workers.state_dict()
        if source is None:
            state["source"] = self.assembly.source.state_dict()
        else:
            driven = with_first(source, self.assembly.normaliser)
            state["source"] = to_save(driven, self.seconds) if self.ranks.rank == 0 else {}  # the first one writes it
        return self.controller.store.save(
            update, state, identity=self.assembly.identity, score=score, unvalidated=unvalidated
        )


class RolloutActor:
    """What a driver calls on a rollout worker. It has a full copy of the networks that sample, and trains nothing."""

    def __init__(self, place: RankInfo, config: RunConfig, judges: Sequence[Any]) -> None:
        """Load the networks.

        Args:
            place: among the rollout workers.
            config: of the run.
            judges: the reward pool's workers; without any, samples are scored here.
        """
        config = config.sampler_config
        self.assembly = assembly = assemble(config, only_samples=True, scorer=_pooled(config, judges, place))
        assembly.scorer.start()
        _ = assembly.engine
        weights = assembly.roles.sampler_weights(full=True)
        engine = assembly.publisher.sync_weights if assembly.publisher and assembly.has_separate_engine else None
        self.receiver = Receiver(weights, engine=engine)
        folder = RunFolder(config.output_dir).profiles
        self.profiler = Profiler(config.profiler, role="rollout", rank=place.rank, folder=folder, watch=assembly.watch)
        self._numbers = PromptNumbers(lambda: assembly.train_prompts)

    def generate(self, request: RolloutRequest) -> tuple[RolloutResult | None, Packed | None]:
        """Sample and score; the second half is for the object store."""
        self.receiver.switch(request.version)
        with self.profiler.during(request.update):
            return generate(self.assembly, request, self._numbers)


# the reward pool: workers that judge samples for everybody who samples


class RewardActor:
    """A worker with the rewards of a run."""

    def __init__(self, rank_info: RankInfo, config: RunConfig) -> None:
        self._until_ended = ExitStack()
        if config.deterministic:
            self._until_ended.enter_context(in_one_order())
        self.scorer = Scorer(config.rewards, config.scoring, config.mixing)
        self.scorer.start()
        folder = RunFolder(config.output_dir).profiles
        self.profiler = Profiler(config.profiler, role="reward", rank=rank_info.rank, folder=folder, watch=Stopwatch())

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs) -> Scores:
        """Judge a batch that belongs to an update; one of validation belongs to none, which is 0."""
        with self.profiler.during(inputs.update):
            return self.scorer.submit(samples, prompts, inputs).result()


def reward_group(pool: Pool, config: RunConfig) -> ActorGroup:
    """The workers, for the driver, which starts and ends them. Whoever samples calls them by their ``handles``."""
    return ActorGroup(
        pool,
        RewardActor,
        [(config,)] * pool.size,
        collective=False,
        # rewards in the worker's own process need not stand two callers
        stateless=config.scoring.processes + 1 if config.scoring.processes else 1,
        nsight=nsight(config.profiler, "reward"),
    )


class PooledScorer(Scorer):
    """Has samples scored by the workers of the reward pool in turns; the driver starts and ends them."""

    name = "reward"
    overlaps = True

    def __init__(self, rewards: Mapping[str, AnyReward], workers: Sequence[Any], *, first: int, seconds: float) -> None:
        super().__init__(rewards, ScoringOptions())
        self._actors, self._next, self._seconds = list(workers), first, seconds

    def start(self) -> None:
        """They have started."""

    def close(self) -> None:
        """The driver ends them."""

    def submit(  # type: ignore[override]
        self, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING
    ) -> Call:
        """Start judging samples: images, uint8 [H, W, 3] each, or responses."""
        rank = self._next % len(self._actors)
        self._next += 1
        call = self._actors[rank].call.options(name="score")
        response = call.remote("score", list(samples), list(prompts), inputs)
        return Call(
            group=self, method="score", responses={rank: response}, seconds=self._seconds, option="ray.call_timeout"
        )

    def watched(self) -> dict[ray.ObjectRef[Any], int]:
        """None: no worker waits for another one."""
        return {}

    def failed(self, rank: int, error: BaseException) -> None:
        """Ray has not replaced a worker that died any more.

        Raises:
            RestartLimit: that, for the driver, which ends the run.
        """
        if isinstance(error, WorkerDied):
            raise RestartLimit(
                f"{error}, more often than ray.max_restarts allows; look for the cause in Ray's logs, and start the "
                "same command again to resume"
            ) from error
