"""Rollouts of generators, scored while the next samples are drawn; what is kept of them; how far the policy moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.diffusion.algorithms.base import Needs
from burnish.diffusion.engine import FlowEngine, FlowJob
from burnish.diffusion.options import RolloutOptions
from burnish.diffusion.roles import FlowRoles
from burnish.diffusion.steps import diffuse
from burnish.metrics import Stopwatch, group_diversity
from burnish.rewards.base import fields_required
from burnish.rewards.scoring import Scorer
from burnish.rl.algorithm import Metrics
from burnish.rl.preference import select_best
from burnish.rollout.sources import RolloutRequest, collector, group_starts
from burnish.tasks.drawings import GLIMPSES, write_sample
from burnish.tasks.sample_files import SampleFiles
from burnish.types.batch import to_device
from burnish.types.rollout import Denoising, Requests, Scored, failures_of, settled
from burnish.types.samples import Clip, Sample, Sound, coarse
from burnish.utils import random
from burnish.utils.images import thumbnail


@dataclass
class FlowRollouts:
    """Samples and scores images; keeps the best and the worst of several candidates if the run says so."""

    engine: FlowEngine
    scorer: Scorer
    needs: Needs
    _: KW_ONLY
    rollout: RolloutOptions
    watch: Stopwatch
    files: SampleFiles | None = None  # where samples are kept
    check_cancelled: Callable[[], None] = lambda: None  # called again and again; what it raises ends the work

    def generate(self, request: RolloutRequest, *, compared: bool = True) -> Scored | None:
        """The samples to learn from: all of the request, or the best and the worst of each group.

        Args:
            request: which samples.
            compared: also metrics for which other networks run than the one that samples.
        """
        candidates = self.rollout.candidates
        taught: set[Any] = {vars(reward).get("stream") for reward in self.scorer.rewards.values()}
        cheap = candidates.num_inference_steps if candidates else None
        job = FlowJob(
            prompts=request.prompts, group=request.group, sample=request.sample, purpose="rollout",
            update=request.update, role=self.needs.sampler, changes={"num_inference_steps": cheap},
            cache_interval=self.rollout.cache_interval, fp8=self.rollout.fp8, streams=frozenset(taught - {None}),
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
            rows = select_best(scored.scores.reward, job.group, scored.scores.missing, self.rollout.n, worst=True)
            if cheap and len(rows):
                again = replace(  # from the same seeds, with the run's own number of steps, and recorded
                    job, prompts=[job.prompts[row] for row in rows.tolist()], group=job.group[rows],
                    sample=job.sample[rows], changes={}, recording=self.needs.recording,
                )  # fmt: skip
                scored, shapes = self._sample(again, request.version, files=self.files)
                failures, ran = [*failures, *scored.failures], [*ran, *scored.execution]
            else:
                scored, shapes = scored.select(rows), [shapes[row] for row in rows.tolist()]
        if self.rollout.n > 1:
            several = torch.unique(scored.group, return_counts=True)[1] > 1
            metrics["critic/diversity"] = group_diversity(shapes, scored.group)
            counts["critic/diversity"] = int(several.sum())
        metrics, counts = scored.metrics | metrics, scored.counts | counts
        scored = replace(scored, metrics=metrics, counts=counts, failures=failures, execution=ran)
        return self.compared(scored, request.groups) if compared else scored

    def compared(self, scored: Scored | None, groups: int) -> Scored | None:
        """Samples of a batch of ``groups`` with how far the policy has moved. Ranks call it together, also those that
        have none."""
        few = None if scored is None else scored.select(watched(scored.group, self.rollout.n, groups))
        with self.watch("ref"):
            grown = velocity_metrics(self.engine.roles, few, self.rollout.batch_size, fp8=self.rollout.fp8)
        if scored is None or few is None:
            return None
        counts = scored.counts | dict.fromkeys(grown, float(len(few)))
        return replace(scored, metrics=scored.metrics | grown, counts=counts)

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
        with self.watch("gen"), closing(self.engine.sample(job)) as parts:
            for rows, trace, some in parts:
                traces.append(trace.put_away() if self.rollout.trajectories == "host" else trace)
                shapes += map(coarse, some)
                for row, sample in enumerate(some, rows.start):
                    group, first = int(job.group[row]), row == 0 or bool(job.group[row - 1] != job.group[row])
                    if files is not None and files.wanted(job.update, group):
                        kept[row] = sample
                    if first and group < GLIMPSES and not isinstance(sample, Sound):
                        middle = sample.frames[len(sample.frames) // 2] if isinstance(sample, Clip) else sample
                        shown.append(thumbnail(middle))
                if context.rank == 0:
                    scoring.add(range(rows.start, rows.stop), some, inputs_of(trace, self.scorer))
        with self.watch("reward"):
            scores, ran = context.first(lambda: settled(scoring.scores(self.check_cancelled), job.group))
        if files is not None:
            context.first(
                lambda: files.keep(
                    job.update, job.prompts, job.group, job.sample, scores,
                    lambda folder, row: {"file_name": write_sample(folder, f"{int(job.sample[row]):03d}", kept[row])},
                    version=version, drawn=job.seeds(self.engine.seed),
                )
            )  # fmt: skip
        trace, metrics = Denoising.cat(traces), dict[str, float]()
        if job.cache_interval > 1:
            computed = self.engine.plan(job, trace.schedule).computed
            metrics["rollout/computed_steps_ratio"] = float(computed.float().mean())
            metrics["rollout/forecast_error"] = float(trace.forecast_error.mean())
        scored = Scored(
            prompts=job.prompts,
            group=job.group,
            sample=job.sample,
            trace=trace,
            scores=scores,
            metrics=metrics,
            counts=dict.fromkeys(metrics, float(len(job.prompts))),
            update=job.update,
            version=version,
            seed=self.engine.seed,
            failures=failures_of(job.prompts, job.sample, scores),
            glimpses=shown,
            execution=ran,
        )
        return scored, shapes


ROWS = 16  # samples that are looked at: few, as their forwards teach nothing
TIME = 0.5  # where both image and noise are to be guessed


def watched(group: Tensor, n: int, groups: int) -> Tensor:
    """Which samples are looked at: rows [M], by the places that they have in the full batch.

    Args:
        group: [B] long, of some samples of the batch, those of a group next to each other.
        n: samples of a group.
        groups: in the batch.
    """
    starts = torch.tensor(group_starts(group))
    place = group * n + torch.arange(len(group)) - starts[:-1].repeat_interleave(starts.diff())
    stride = max(groups * n // ROWS, 1)
    return ((place % stride == 0) & (place < stride * ROWS)).nonzero().flatten()


def velocity_metrics(roles: FlowRoles, some: Scored | None, size: int, *, fp8: bool) -> Metrics:
    """Norm of the policy's velocity over the reference's, and of their difference over the reference's; and that of its
    difference in fp8 over its own.

    All are means over the samples, noised again halfway, ``size`` in a forward; nothing where there is no reference, or
    no fp8. Ranks that hold the networks together gather one after the other, and so does a rank that has no samples.
    """
    with_reference = roles.lora is not None or roles.needs.reference  # with adapters it is always at hand
    names = ("policy", "reference") if with_reference else ("policy",) if fp8 else ()
    rows = list(_noised(roles, some, size)) if some and names else []
    made = dict[str, list[Tensor]]()
    for name in names if rows or roles.shards.networks else ():
        with roles.sampling(name, merge=False) as role:
            made[name] = [role(*one) for one in rows]
            if fp8 and name == "policy":
                with roles.fp8(name, role) as rounded:
                    made["rounded"] = [rounded(*one) for one in rows]
    if not rows:
        return {}
    found = {name: torch.cat(parts).flatten(1) for name, parts in made.items()}
    norms = {name: velocity.norm(dim=1) for name, velocity in found.items()}
    metrics = dict[str, Tensor]()
    if "reference" in found:
        apart = (found["policy"] - found["reference"]).norm(dim=1)
        metrics["actor/velocity_norm_ratio"] = norms["policy"] / norms["reference"]
        metrics["actor/velocity_distance"] = apart / norms["reference"]
    if "rounded" in found:
        metrics["rollout/fp8_error"] = (found["rounded"] - found["policy"]).norm(dim=1) / norms["policy"]
    return {name: float(values.mean()) for name, values in metrics.items()}


def _noised(roles: FlowRoles, some: Scored, size: int) -> Iterator[tuple[Tensor, Tensor, Requests]]:
    """What a network is asked for: final states that are noised again, ``size`` at a time."""
    clean = to_device(some.trace.latents, roles.device)
    noise = to_device(random.normal(clean.shape[1:], some.keys("growth")), clean.device)
    time = torch.full((len(some),), TIME)
    noisy = diffuse(clean, noise, to_device(time, clean.device), to_device(some.trace.noised, clean.device))
    for start in range(0, len(some), size):
        part = slice(start, start + size)
        yield noisy[part], time[part], some.trace.conditioning.select(part)


def inputs_of(trace: Denoising, scorer: Scorer) -> dict[str, list[Any]]:
    """What rewards ask for besides what was drawn, by name, of each sample; nothing else leaves the GPU."""
    return (
        {"latents": list(trace.latents.float().cpu().numpy())} if "latents" in fields_required(scorer.rewards) else {}
    )
