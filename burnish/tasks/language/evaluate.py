"""Responses to held-out questions, always with the same random numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from burnish.algorithms.base import Metrics
from burnish.metrics import given_metrics, length_metrics, validation_metrics
from burnish.rewards.scoring import awaited
from burnish.rewards.text.base import Response
from burnish.tasks import LanguageAssembly
from burnish.tasks.language.dialogues import dialogue_metrics
from burnish.tasks.language.engine import ResponseJob
from burnish.tasks.scores import write_scores
from burnish.tasks.shares import of_all, share
from burnish.types.completion import Lengths
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from burnish.utils.disk import writing

SHOWN = 16  # questions whose responses are kept
FRAMES = 4  # of a video that are kept


def judge(assembly: LanguageAssembly, target: Path | None, *, n: int) -> Metrics:
    """Answer held-out questions, score, and keep the first ones in ``target``, if any."""
    job = ResponseJob.groups(assembly.val_prompts, n, purpose="validation", update=0, sampling=assembly.judged_sampling)
    job = replace(job, between=assembly.between)
    made = of_all(assembly.ranks, lambda: _judged(assembly, share(assembly.ranks, job)))
    shares = [one for one in made if one is not None]
    responses = [response for some, _, _ in shares for response in some]
    lengths = Lengths.cat([some for _, some, _ in shares])
    scores = Scores.cat([some for _, _, some in shares])
    if target is not None:
        tokens = {"tokens": lengths.response.tolist()}
        write_scores(target, job.prompts, job.group.tolist(), n, scores, tokens)
        _keep(target, job, lengths, responses, scores, n)
    return (
        validation_metrics(scores, job.prompts)
        | given_metrics(scores, job.prompts, "format")
        | {f"val-aux/{name}": value for name, value in length_metrics(lengths).items()}
        | {f"val-aux/{name}": value for name, value in dialogue_metrics(responses).items()}
        | {"val-aux/missing": float(scores.missing.float().mean())}
    )


def _judged(assembly: LanguageAssembly, job: ResponseJob) -> tuple[list[Response], Lengths, Scores] | None:
    """Responses with their lengths and scores; None for no prompts."""
    if not job.prompts:
        return None
    completion, responses = assembly.engine.sample(job)
    scores = awaited(assembly.scorer.submit(responses, job.prompts), assembly.between)
    return responses, completion.lengths, scores


def _keep(
    target: Path, job: ResponseJob, lengths: Lengths, responses: Sequence[Response], scores: Scores, n: int
) -> None:
    folder = target / "pictures"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i in range(min(len(responses), SHOWN * n)):
        prompt, group = job.prompts[i], int(job.group[i])
        missing = bool(scores.missing[i])
        values = zip(scores.names, scores.components[i].tolist(), strict=True)
        lines.append(
            json.dumps(
                {
                    "prompt": prompt.turns[-1].text,
                    "answer": prompt.answer,
                    "index": group,
                    "sample": i % n,
                    "response": responses[i].whole,
                    "finished": responses[i].finished,
                    "tokens": int(lengths.response[i]),
                    "images": _pictures(folder, prompt, responses[i], group) if i % n == 0 else _names(folder, group),
                    "reward": None if missing else float(scores.reward[i]),
                    "components": {name: None if value != value else value for name, value in values},
                    "note": scores.notes[i],
                }
            )
        )
    with writing(target):
        (target / "samples.jsonl").write_text("\n".join(lines) + "\n")


def _pictures(folder: Path, prompt: Prompt, response: Response, group: int) -> list[str]:
    """Keep what the question shows, and an environment after it; names of the files."""
    shown = [media.image() for media in prompt.images]
    for media in prompt.videos:
        frames, _ = media.video(FRAMES)
        shown += [Image.fromarray(np.asarray(frame)) for frame in frames]
    shown += response.dialogue.pictures if response.dialogue is not None else ()
    with writing(folder):
        for number, picture in enumerate(shown):
            picture.save(folder / f"{group:03d}-{number}.png")
    return _names(folder, group)


def _names(folder: Path, group: int) -> list[str]:
    return sorted(path.name for path in folder.glob(f"{group:03d}-*.png"))
