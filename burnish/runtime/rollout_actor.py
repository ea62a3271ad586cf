"""A rollout worker: it samples with the weights of a version and has the samples scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.rollout.requests import RolloutRequest
from burnish.runtime.actor import RankInfo
from burnish.runtime.prompt_numbers import PromptNumbers
from burnish.runtime.reward_pool import PooledScorer
from burnish.runtime.rollout_result import RolloutResult, generate
from burnish.runtime.transfer import Packed
from burnish.runtime.weight_transfer import Receiver
from burnish.tasks import assemble
from burnish.training.profiling import Profiler
from burnish.types.prompt import Prompt


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
        self.assembly = assembly = assemble(config, only_samples=True)
        if judges:
            assembly.scorer = PooledScorer(config.rewards, judges, first=place.rank, seconds=config.ray.call_timeout)
        assembly.scorer.start()
        # its weights are compared when they are published, for afterwards the network gets those of the next version
        assembly.example = Prompt(text="What is this?")
        _ = assembly.engine
        weights = assembly.roles.sampler_weights(full=True)
        engine = assembly.publisher.publish if assembly.publisher and assembly.has_separate_engine else None
        self.receiver = Receiver(weights, bucket_mb=config.weight_sync.bucket_mb, engine=engine)
        folder = RunFolder(config.output_dir).profiles
        self.profiler = Profiler(config.profiler, role="rollout", rank=place.rank, folder=folder, watch=assembly.watch)
        self._numbers = PromptNumbers(lambda: assembly.train_prompts)

    def generate(self, request: RolloutRequest) -> tuple[RolloutResult | None, Packed | None]:
        """Sample and score; the second half is for the object store."""
        version = self.receiver.version
        assert version == request.version, f"weights of version {request.version} are to sample, and {version} is here"
        with self.profiler.during(request.update):
            return generate(self.assembly, request, self._numbers)
