"""Samples of held-out prompts, always from the same noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from burnish.diffusion.engine import FlowJob
from burnish.diffusion.rollouts import contact_sheet, inputs_of, write_inputs, write_sample
from burnish.evaluation.records import sampled_settings
from burnish.metrics import diversities, group_diversity
from burnish.rl.algorithm import Metrics
from burnish.rollout.sources import Job, collector
from burnish.tasks.evaluate import Evaluated, Evaluation
from burnish.training.ranks import by_first
from burnish.types.samples import coarse
from burnish.utils.disk import writing


class FlowEvaluation(Evaluation):
    """Draws; shows pictures, clips or sounds, and a sheet of them. What metrics are made of is their structure."""

    def check(self) -> None:
        super().check()
        self.assembly.check_suite(self.suite, self.prompts)

    def job(self, n: int, guidance: float | None = None) -> FlowJob:
        how = self.settings if self.suite else vars(self.assembly.config.validation)
        return self.groups(
            FlowJob, n, guidance=how["guidance_scale"] if guidance is None else guidance,
            steps=how["num_inference_steps"], solver=how["solver"], height=how["height"], width=how["width"],
        )  # fmt: skip

    @property
    def settings(self) -> dict[str, Any]:
        config = self.assembly.config
        rollout = asdict(config.rollout)
        own = rollout | {name: value for name, value in asdict(config.validation).items() if value is not None}
        others = ("batch_size", "embedded_guidance", "schedule", "shift", "max_sequence_length")
        return (
            sampled_settings(self.suite, own) | {name: rollout[name] for name in others} | {"dtype": config.model.dtype}
        )

    def sampled(self, job: FlowJob) -> Evaluated:
        """In batches, which are scored while the next ones are sampled."""
        assembly, structures, shown = self.assembly, list[Any](), list[Any]()
        context = assembly.ranks.context  # ranks that draw the same, of which the first scores and keeps it
        scoring = collector(job, self.scorer, one_by_one=False, tell=assembly.tell)
        with closing(assembly.engine.sample(job)) as parts:
            for rows, trace, samples in parts:
                if context.rank == 0:
                    scoring.add(range(rows.start, rows.stop), samples, inputs_of(trace, self.scorer))
                # no more is kept than is needed: clips would fill the memory
                kept = (job.group[rows] < (0 if context.rank else self.shown)).tolist()
                shown += [sample if keep else None for sample, keep in zip(samples, kept, strict=True)]
                structures += map(coarse, samples)
        return Evaluated(by_first(context, lambda: scoring.scores(assembly.stop.check)), structures, shown)

    def metrics(self, job: Job, evaluated: Evaluated) -> Metrics:
        return {"val-aux/variety": group_diversity(evaluated.known, job.group)}

    def measured(self, job: Job, evaluated: Evaluated) -> Mapping[str, Sequence[float]]:
        varied = diversities(evaluated.known, job.group)
        return {"variety": [varied.get(number, math.nan) for number in job.group.tolist()]}

    def keep(self, target: Path, job: Job, n: int, evaluated: Evaluated, shown: int) -> Sequence[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        with writing(target):
            for i, sample in enumerate(evaluated.shown[:shown]):
                group = f"{int(job.group[i]):03d}"
                if i % n == 0:
                    inputs = write_inputs(target / "pictures", f"{group}-input", job.prompts[i])
                file = write_sample(target / "pictures", f"{group}-{i % n:02d}", sample)
                records.append({"file": file} | ({"images": inputs} if inputs else {}))
            contact_sheet(evaluated.shown[:shown], job.prompts[:shown:n], n).save(target / "grid.png")
        return records

    def keep_file(self, folder: Path, job: Job, evaluated: Evaluated, row: int) -> Mapping[str, Any]:
        return {"file_name": write_sample(folder, f"{int(job.sample[row]):03d}", evaluated.shown[row])}

    def keep_of_suite(self, folder: Path, stem: str, evaluated: Evaluated, row: int) -> dict[str, Any]:
        sample = evaluated.shown[row]
        return {} if sample is None else {"file": write_sample(folder, stem, sample)}
