"""A rollout worker: it samples with the weights of a version and has the samples scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.rollout.requests import RolloutRequest
from burnish.runtime.actor import RankInfo
from burnish.runtime.reward_pool import PooledScorer
from burnish.runtime.rollout_result import RolloutResult, generate
from burnish.runtime.transfer import Packed
from burnish.runtime.weight_transfer import Receiver
from burnish.tasks import assemble
from burnish.training.profiling import Profiler


class RolloutActor:
    """What a driver calls on a rollout worker. It has a full copy of the networks that sample, and trains nothing."""

    def __init__(self, place: RankInfo, config: RunConfig, judges: Sequence[Any]) -> None:
        """Load the networks.

        Args:
            place: among the rollout workers.
            config: of the run.
            judges: the reward pool's workers; without any, samples are scored here.
        """
        self.assembly = assembly = assemble(config, only_samples=True)
        if judges:
            assembly.scorer = PooledScorer(config.rewards, judges, first=place.rank, seconds=config.ray.call_timeout)
        assembly.scorer.start()
        _ = assembly.engine
        weights = assembly.roles.sampler_weights(full=True)
        self.receiver = Receiver(weights, bucket_mb=config.ray.publication.bucket_mb)
        folder = RunFolder(config.output_dir).profiles
        self.profiler = Profiler(config.profiler, role="rollout", rank=place.rank, folder=folder, watch=assembly.watch)
        self._published: int | None = None  # what an engine of its own samples with

    def generate(self, request: RolloutRequest) -> tuple[RolloutResult, Packed]:
        """Sample and score; the second half is for the object store."""
        version = self.receiver.version
        assert version == request.version, f"weights of version {request.version} are to sample, and {version} is here"
        if version != self._published:
            if self.assembly.publisher is not None:
                self.assembly.publisher.publish(version)
            self._published = version
        with self.profiler.during(request.update):
            return generate(self.assembly, request)
