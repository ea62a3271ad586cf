"""Samples of held-out prompts, always from the same noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from burnish.diffusion.engine import FlowJob
from burnish.diffusion.rollouts import contact_sheet, inputs_of, write_inputs, write_sample
from burnish.evaluation.results import sampled_settings
from burnish.metrics import diversities, group_diversity
from burnish.rewards.base import fields_required
from burnish.rewards.scoring import awaited
from burnish.rl.algorithm import Metrics
from burnish.tasks.evaluate import Evaluated, Evaluation
from burnish.tasks.job import Job, collector
from burnish.tasks.suites import Outcome, SuiteRunner
from burnish.training.ranks import by_first
from burnish.types.clips import Sample, coarse
from burnish.utils.disk import writing


@dataclass(frozen=True)
class Drawn:
    """A sample of a held-out prompt, of which no more is kept than is needed: clips would fill the memory."""

    sample: Sample | None  # None: its prompt is not shown
    structure: np.ndarray | None  # see ``burnish.metrics.coarse``


class FlowEvaluation(Evaluation):
    """Draws; shows pictures, clips or sounds, and a sheet of them."""

    def job(self, n: int, guidance: float | None) -> FlowJob:
        options = self.assembly.config.validation
        return FlowJob.groups(
            self.assembly.val_prompts, n, purpose="validation", update=0, check_cancelled=self.assembly.stop.check,
            guidance=options.guidance_scale if guidance is None else guidance, steps=options.num_inference_steps,
            solver=options.solver, height=options.height, width=options.width,
        )  # fmt: skip

    def sampled(self, job: FlowJob) -> Evaluated:
        """In batches, which are scored while the next ones are sampled."""
        assembly, drawn = self.assembly, []
        context = assembly.ranks.context  # ranks that draw the same, of which the first scores it
        scoring = collector(job, assembly.scorer, one_by_one=False, tell=assembly.tell)
        asked = fields_required(assembly.scorer.rewards)
        with closing(assembly.engine.sample(job)) as parts:
            for rows, trace, some in parts:
                if context.rank == 0:
                    scoring.add(range(rows.start, rows.stop), some, inputs_of(trace, asked))
                shown = (job.group[rows] < self.shown).tolist()
                drawn += [Drawn(one if kept else None, coarse(one)) for one, kept in zip(some, shown, strict=True)]
        return Evaluated(drawn, by_first(context, lambda: scoring.scores(assembly.stop.check)))

    def without_shown(self, found: Evaluated) -> Evaluated:
        return replace(found, samples=[Drawn(None, drawn.structure) for drawn in found.samples])

    def measured(self, job: Job, found: Evaluated) -> Mapping[str, Sequence[float]]:
        varied = diversities([drawn.structure for drawn in found.samples], job.group)
        return {"variety": [varied.get(number, math.nan) for number in job.group.tolist()]}

    def keep(self, target: Path, job: Job, n: int, found: Evaluated, shown: int) -> Sequence[dict[str, Any]]:
        samples, prompts = [drawn.sample for drawn in found.samples[:shown]], job.prompts[:shown:n]
        records: list[dict[str, Any]] = []
        with writing(target):
            for i, sample in enumerate(samples):
                group = f"{int(job.group[i]):03d}"
                if i % n == 0:
                    inputs = write_inputs(target / "pictures", f"{group}-input", job.prompts[i])
                file = write_sample(target / "pictures", f"{group}-{i % n:02d}", sample)
                records.append({"file": file} | ({"images": inputs} if inputs else {}))
            contact_sheet(samples, prompts, n).save(target / "grid.png")
        return records

    def keep_file(self, folder: Path, job: Job, found: Evaluated, row: int) -> Mapping[str, Any]:
        sample = found.samples[row].sample
        assert sample is not None, "it is of a prompt that is shown"
        return {"file_name": write_sample(folder, f"{int(job.sample[row]):03d}", sample)}

    def metrics(self, job: Job, found: Evaluated) -> Metrics:
        return {"val-aux/variety": group_diversity([drawn.structure for drawn in found.samples], job.group)}


class GeneratorSuite(SuiteRunner):
    """A suite of a generator."""

    def check(self) -> None:
        super().check()
        self.assembly.check_suite(self.suite, self.prompts)

    @property
    def settings(self) -> dict[str, Any]:
        config = self.assembly.config
        rollout = asdict(config.rollout)
        own = rollout | {name: value for name, value in asdict(config.validation).items() if value is not None}
        others = ("batch_size", "embedded_guidance", "schedule", "shift", "max_sequence_length")
        return (
            sampled_settings(self.suite, own) | {name: rollout[name] for name in others} | {"dtype": config.model.dtype}
        )

    def job(self, fields: Mapping[str, Any]) -> Any:
        how = self.settings
        return FlowJob(
            **fields, guidance=how["guidance_scale"], steps=how["num_inference_steps"], solver=how["solver"],
            height=how["height"], width=how["width"],
        )  # fmt: skip

    def sampled(self, job: Any) -> Outcome:
        context = self.assembly.ranks.context  # ranks that draw the same, of which the first scores and keeps it
        with closing(self.assembly.engine.sample(job)) as parts:
            drawn = [one for _, _, some in parts for one in some]
        check_cancelled = self.assembly.stop.check
        scores = by_first(context, lambda: awaited(self.scorer.submit(drawn, job.prompts), check_cancelled))
        return Outcome(scores, [{}] * len(drawn), [] if context.rank else drawn)

    def write(self, folder: Path, stem: str, sample: Any) -> str:
        return write_sample(folder, stem, sample)
