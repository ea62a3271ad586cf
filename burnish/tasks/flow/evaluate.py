"""Pictures of held-out prompts, always from the same noise."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

import numpy as np
from PIL import Image

from burnish.algorithms.base import Metrics
from burnish.metrics import group_diversities, group_diversity, validation_metrics
from burnish.rewards.scoring import awaited
from burnish.tasks import FlowAssembly
from burnish.tasks.flow.engine import Job
from burnish.tasks.scores import write_scores
from burnish.tasks.shares import of_all, share
from burnish.types.rollout import Scores
from burnish.utils.disk import writing
from burnish.utils.images import grid

SHOWN = 16  # prompts whose pictures are kept


def judge(assembly: FlowAssembly, target: Path | None, *, n: int, guidance: float | None = None) -> Metrics:
    """Sample held-out prompts, score them, and keep pictures and verdicts of the first ones in ``target``, if any."""
    job = Job.groups(
        assembly.val_prompts, n, purpose="validation", update=0, guidance=guidance, between=assembly.between
    )
    shares = of_all(assembly.ranks, lambda: _judged(assembly, share(assembly.ranks, job)))
    pictures = [picture for some, _ in shares for picture in some]
    scores = Scores.cat([score for _, some in shares for score in some])
    if target is not None:
        group = job.group.tolist()
        varied = group_diversities(pictures, job.group)
        measured = {"variety": [varied.get(number, math.nan) for number in group]}
        with writing(target):
            write_scores(target, job.prompts, group, n, scores, measured)
            _keep(target, job, pictures, scores, n)
    return validation_metrics(scores, job.prompts) | {
        "val-aux/variety": group_diversity(pictures, job.group),
        "val-aux/missing": float(scores.missing.float().mean()),
    }


def _judged(assembly: FlowAssembly, job: Job) -> tuple[list[np.ndarray], list[Scores]]:
    """Pictures and their scores, in batches; scored while the next ones are sampled."""
    pictures: list[np.ndarray] = []
    pending = []
    if not job.prompts:
        return [], []
    with closing(assembly.engine.sample(job)) as parts:
        for rows, _, some in parts:
            pictures += some
            pending.append(assembly.scorer.submit(some, job.prompts[rows]))
    return pictures, [awaited(part, assembly.between) for part in pending]


def _keep(target: Path, job: Job, pictures: list[np.ndarray], scores: Scores, n: int) -> None:
    folder = target / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    shown = min(len(pictures), SHOWN * n)
    lines = []
    for i in range(shown):
        group, sample = int(job.group[i]), i % n
        Image.fromarray(pictures[i]).save(folder / f"{group:03d}-{sample:02d}.png")
        missing = bool(scores.missing[i])
        values = zip(scores.names, scores.components[i].tolist(), strict=True)
        lines.append(
            json.dumps(
                {
                    "prompt": job.prompts[i].text,
                    "answer": job.prompts[i].answer,
                    "index": group,
                    "sample": sample,
                    "reward": None if missing else float(scores.reward[i]),
                    "components": {name: None if value != value else value for name, value in values},
                    "note": scores.notes[i],
                }
            )
        )
    (target / "samples.jsonl").write_text("\n".join(lines) + "\n")
    labels = [job.prompts[i].text for i in range(0, shown, n)]
    grid(pictures[:shown], columns=n, labels=labels).save(target / "grid.png")
