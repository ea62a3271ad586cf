"""The reward pool: workers that judge samples for everybody who samples.

They hold no state, so Ray itself starts one again that died, and asks it again what it had not answered.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.rewards.base import AnyReward
from burnish.rewards.scoring import Scorer
from burnish.runtime.actor import directory, enter, environment, leave_interrupts
from burnish.runtime.calls import reason
from burnish.runtime.faults import RestartLimit, WorkerDied, WorkerTimeout
from burnish.runtime.pools import Pool
from burnish.training.profiling import Profiler, nsight
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from burnish.utils.timer import Stopwatch


class RewardActor:
    """An actor with the rewards of a run."""

    def __init__(self, config: RunConfig, rank: int, where: str) -> None:
        leave_interrupts()
        enter(where)
        self.scorer = Scorer(config.rewards, config.scoring)
        self.scorer.start()
        folder = RunFolder(config.output_dir).profiles
        self.profiler = Profiler(config.profiler, role="reward", rank=rank, folder=folder, watch=Stopwatch())

    def pid(self) -> int:
        """Of its process, on its machine."""
        return os.getpid()

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt], update: int) -> Scores:
        """Judge a batch that belongs to an update; one of validation belongs to none, which is 0."""
        own = [sample.copy() if isinstance(sample, np.ndarray) else sample for sample in samples]  # to be written to
        with self.profiler.during(update):
            return self.scorer.score(own, prompts)


class RewardPool:
    """The workers, for the driver, which starts and ends them."""

    def __init__(self, pool: Pool, config: RunConfig) -> None:
        """Start them and wait until they are there.

        Raises:
            Late: they do not come in time.
        """
        self.pool = pool
        options, need = pool.options, pool.need
        actor: Any = ray.remote(RewardActor)
        under = nsight(config.profiler, "reward")
        watched = {"nsight": under} if under is not None else {}
        self.judges = [
            actor.options(
                num_cpus=need.cpus,
                num_gpus=need.gpus,
                scheduling_strategy=pool.strategy(rank),
                runtime_env={"env_vars": environment(need.cpus, options.runtime_env)} | watched,
                max_restarts=options.max_restarts,
                max_task_retries=options.max_restarts,
                # rewards in the worker's own process need not stand two callers
                max_concurrency=config.scoring.processes + 1 if config.scoring.processes else 1,
            ).remote(config, rank, directory(options.runtime_env))
            for rank in range(pool.size)
        ]
        self.pids: list[int] = []
        try:
            self.pids = ray.get([judge.pid.remote() for judge in self.judges], timeout=options.start_timeout)
        except GetTimeoutError:
            raise WorkerTimeout(
                f"workers of pool reward did not start in ray.start_timeout={options.start_timeout:g} seconds"
            ) from None
        except RayActorError as error:
            raise WorkerDied("reward", 0, reason(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for judge in self.judges:
            ray.kill(judge, no_restart=True)


@dataclass(frozen=True)
class PendingScores:
    """Samples that a worker of the pool judges."""

    reference: ray.ObjectRef[Any]
    seconds: float

    def there(self, seconds: float) -> bool:
        """Whether the verdicts, or an error, are there; waits so long."""
        return bool(ray.wait([self.reference], timeout=seconds)[0])

    def result(self) -> Scores:
        """Wait for the verdicts.

        Raises:
            Late: they do not come in time.
            RestartLimit: the worker died too often.
        """
        try:
            scores: Scores = ray.get(self.reference, timeout=self.seconds)
        except GetTimeoutError:
            raise WorkerTimeout(
                "waited for a worker of pool reward to judge samples longer than "
                f"ray.call_timeout={self.seconds:g} seconds"
            ) from None
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except RayActorError as error:
            raise RestartLimit(
                f"a worker of pool reward died more often than ray.max_restarts allows: {reason(error)}; look for the "
                "cause in Ray's logs, and start the same command again to resume"
            ) from error
        return scores


class PooledScorer:
    """Has samples judged by the reward pool, in turns; to whoever samples it is a ``Scorer``."""

    def __init__(self, rewards: Mapping[str, AnyReward], judges: Sequence[Any], *, first: int, seconds: float) -> None:
        self.rewards, self._judges, self._next, self._seconds = dict(rewards), list(judges), first, seconds
        self.update = 0  # that what is submitted belongs to; 0 is none

    def start(self) -> None:
        """They have started."""

    def close(self) -> None:
        """The driver ends them."""

    def silent(self) -> AbstractContextManager[None]:
        """The workers warn where they are."""
        return nullcontext()

    def submit(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> PendingScores:
        """Start judging samples: pictures, uint8 [H, W, 3] each, or responses."""
        judge = self._judges[self._next % len(self._judges)]
        self._next += 1
        return PendingScores(judge.score.remote(list(samples), list(prompts), self.update), self._seconds)

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> Scores:
        """Judge samples and wait for the result."""
        return self.submit(samples, prompts).result()
