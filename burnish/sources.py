"""Where scored samples come from. The loop asks a source for one batch per policy update and knows no more."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from burnish.algorithms.base import Needs
from burnish.data.stream import PromptStream
from burnish.engines.flow import FlowEngine, Job
from burnish.rewards.scoring import Scorer
from burnish.stopwatch import Stopwatch
from burnish.types import Denoising, Scored, Scores


class Source(Protocol):
    """Online sampling, a preference dataset, or sampling that runs ahead of the loop."""

    def collect(self, update: int) -> Scored:
        """The batch of policy update ``update``, counted from 1."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the next batch."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class OnlineSource:
    """Samples with the current weights and scores while it samples."""

    def __init__(
        self, stream: PromptStream, engine: FlowEngine, scorer: Scorer, needs: Needs, *, n: int, watch: Stopwatch
    ) -> None:
        self.stream, self.engine, self.scorer = stream, engine, scorer
        self.needs, self.n, self.watch = needs, n, watch

    def collect(self, update: int) -> Scored:
        prompts = self.stream.next_batch()
        job = Job.groups(
            prompts, self.n,
            purpose="rollout", update=update, stochastic=self.needs.stochastic, role=self.needs.sampler,
        )  # fmt: skip
        traces: list[Denoising] = []
        pending: list[Future[Scores]] = []
        with self.watch("gen"):
            for rows, trace, pictures in self.engine.sample(job):
                traces.append(trace)
                pending.append(self.scorer.submit(pictures, job.prompts[rows]))
        with self.watch("reward"):
            scores = Scores.cat([part.result() for part in pending])
        return Scored(
            prompts=job.prompts,
            group=job.group,
            sample=job.sample,
            trace=Denoising.cat(traces),
            scores=scores,
            update=update,
            version=update - 1,
            seed=self.engine.seed,
        )

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)
