"""The verdicts of a whole validation, a line for each sample, by which two of them are compared prompt by prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from burnish.utils.disk import writing


def write_scores(
    target: Path, prompts: Sequence[Prompt], group: Sequence[int], n: int, scores: Scores,
    measured: Mapping[str, Sequence[float]],
) -> None:  # fmt: skip
    """Write scores.jsonl.

    Args:
        target: folder of the validation.
        prompts: one per sample.
        group: number of each sample's prompt.
        n: samples of a prompt.
        scores: of the samples.
        measured: what else is known of each sample, by name; NaN where it is not.
    """
    lines = []
    for i, (prompt, number) in enumerate(zip(prompts, group, strict=True)):
        values = dict(zip(scores.names, scores.components[i].tolist(), strict=True))
        values |= {name: column[i] for name, column in measured.items()}
        known = {name: None if value != value else value for name, value in values.items()}
        reward = None if scores.missing[i] else float(scores.reward[i])
        about = {"index": number, "sample": i % n, "source": prompt.source}
        lines.append(json.dumps(about | {"reward": reward, "values": known}, ensure_ascii=False))
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
        (target / "scores.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
