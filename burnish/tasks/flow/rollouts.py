"""Requested pictures, sampled and scored in this process: scored while the next ones are sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from burnish.advantages.selection import select_best_worst
from burnish.algorithms.flow.base import Needs
from burnish.metrics import group_diversity
from burnish.options.flow import RolloutOptions
from burnish.rewards.given import inputs_asked
from burnish.rewards.scoring import AnyScorer
from burnish.rollout.requests import RolloutRequest
from burnish.tasks.flow.drift import velocity_growth, watched
from burnish.tasks.flow.engine import FlowEngine, FlowJob
from burnish.tasks.flow.samples import glimpses, inputs_of, write_sample
from burnish.tasks.job import collector
from burnish.tasks.sample_files import SampleFiles
from burnish.training.ranks import by_first
from burnish.types.clips import Sample
from burnish.types.execution import joined
from burnish.types.rollout import Denoising, Scored, failures_of, settled
from burnish.types.structure import coarse
from burnish.utils.timer import Stopwatch


@dataclass
class FlowRollouts:
    """Samples and scores pictures; keeps the best and the worst of several candidates if the run says so."""

    engine: FlowEngine
    scorer: AnyScorer
    needs: Needs
    _: KW_ONLY
    rollout: RolloutOptions
    watch: Stopwatch
    files: SampleFiles | None = None  # where samples are kept
    check_cancelled: Callable[[], None] = lambda: None  # called again and again; what it raises ends the work

    def generate(self, request: RolloutRequest) -> Scored | None:
        """The samples to learn from: all of the request, or the best and the worst of each group."""
        return self.compared(self.sampled(request), request.groups)

    def sampled(self, request: RolloutRequest) -> Scored:
        """The same, without the metrics for which other networks run than the one that samples."""
        candidates = self.rollout.candidates
        cheap = candidates.num_inference_steps if candidates else None
        job = FlowJob(
            prompts=request.prompts, group=request.group, sample=request.sample, purpose="rollout",
            update=request.update, role=self.needs.sampler, steps=cheap,
            recording=None if cheap else self.needs.recording, check_cancelled=self.check_cancelled,
        )  # fmt: skip
        scored, shapes = self._sample(job, request.version, files=None if cheap else self.files)
        failures, ran = scored.failures, scored.execution
        metrics: dict[str, float] = {}
        counts: dict[str, float] = {}
        if candidates:
            known = scored.scores.reward[~scored.scores.missing]
            name = "train/candidates/reward/mean"
            metrics[name], counts[name] = float(known.mean()) if len(known) else float("nan"), len(known)
            rows = select_best_worst(scored.scores.reward, job.group, scored.scores.missing, self.rollout.n)
            if cheap and len(rows):
                again = _again(job, rows, self.needs)
                scored, shapes = self._sample(again, request.version, files=self.files)
                failures, ran = [*failures, *scored.failures], joined([ran, scored.execution])
            else:
                scored, shapes = scored.select(rows), [shapes[row] for row in rows.tolist()]
        if self.rollout.n > 1:
            several = torch.unique(scored.group, return_counts=True)[1] > 1
            metrics["critic/diversity"] = group_diversity(shapes, scored.group)
            counts["critic/diversity"] = int(several.sum())
        return replace(scored, metrics=metrics, counts=counts, failures=failures, execution=ran)

    def compared(self, scored: Scored | None, groups: int) -> Scored | None:
        """Samples of a batch of ``groups`` with how far the policy has moved. Ranks call it together, also those that
        have none."""
        looked: Scored | None = None
        if scored is not None:
            looked = scored.select(watched(self._positions(scored.group), groups * self.rollout.n))
        with self.watch("ref"):
            grown = velocity_growth(self.engine.roles, looked, self.rollout.batch_size)
        if scored is None or looked is None:
            return None
        counts = scored.counts | dict.fromkeys(grown, float(len(looked)))
        return replace(scored, metrics=scored.metrics | grown, counts=counts)

    def _positions(self, group: Tensor) -> Tensor:
        """Positions of rows in the full batch, [B] long, if every group of it has all of its samples."""
        sizes = torch.unique_consecutive(group, return_counts=True)[1]
        within = torch.cat([torch.arange(size) for size in sizes.tolist()]) if len(sizes) else group
        return group * self.rollout.n + within

    def _sample(
        self, job: FlowJob, version: int, *, files: SampleFiles | None
    ) -> tuple[Scored, list[np.ndarray | None]]:
        """Samples with their rewards, and the coarse structure of each; the rest of them would fill the memory."""
        traces: list[Denoising] = []
        shapes: list[np.ndarray | None] = []
        kept: dict[int, Sample] = {}  # by row, those that are written as files
        shown: list[bytes] = []
        context = self.engine.roles.context  # ranks that draw the same, of which the first scores and keeps it
        scoring = collector(job, self.scorer, one_by_one=False)
        asked = inputs_asked(self.scorer.rewards)
        with self.watch("gen"), closing(self.engine.sample(job)) as parts:
            for rows, trace, some in parts:
                traces.append(trace.put_away() if self.rollout.trajectories == "host" else trace)
                shapes += map(coarse, some)
                if files is not None:
                    groups = zip(range(rows.start, rows.stop), job.group[rows].tolist(), some, strict=True)
                    kept |= {row: one for row, group, one in groups if files.wanted(job.update, group)}
                shown += glimpses(job, rows, some)
                if context.rank == 0:
                    scoring.add(range(rows.start, rows.stop), some, inputs_of(trace, asked))
        with self.watch("reward"):
            scores, ran = by_first(context, lambda: settled(scoring.scores(self.check_cancelled), job.group))
        if files is not None:
            write = partial(_write, kept, job)
            drawn = job.seeds(self.engine.seed)
            what = (job.update, job.prompts, job.group, job.sample, scores, write)
            by_first(context, lambda: files.keep(*what, version=version, drawn=drawn))
        scored = Scored(
            prompts=job.prompts,
            group=job.group,
            sample=job.sample,
            trace=Denoising.cat(traces),
            scores=scores,
            update=job.update,
            version=version,
            seed=self.engine.seed,
            failures=failures_of(job.prompts, job.sample, scores),
            glimpses=shown,
            execution=ran,
        )
        return scored, shapes


def _write(shown: Mapping[int, Sample], job: FlowJob, folder: Path, row: int) -> dict[str, str]:
    return {"file_name": write_sample(folder, f"{int(job.sample[row]):03d}", shown[row])}


def _again(job: FlowJob, rows: Tensor, needs: Needs) -> FlowJob:
    """Some samples of a job from the same seeds, with the run's own number of steps, and recorded."""
    prompts = [job.prompts[row] for row in rows.tolist()]
    return replace(
        job, prompts=prompts, group=job.group[rows], sample=job.sample[rows], steps=None, recording=needs.recording
    )
