"""The reward pool: workers that judge samples for everybody who samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import ray

from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.options import ScoringOptions
from burnish.rewards.base import NOTHING, AnyReward, RewardInputs
from burnish.rewards.scoring import Scorer
from burnish.runtime.actor import RankInfo
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.calls import Call, RestartLimit, WorkerDied
from burnish.runtime.cluster import Pool
from burnish.training.profiling import Profiler, nsight
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from burnish.utils.random import in_one_order
from burnish.utils.timer import Stopwatch


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
            return self.scorer.score(samples, prompts, inputs)


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
        """Start judging samples: pictures, uint8 [H, W, 3] each, or responses."""
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
