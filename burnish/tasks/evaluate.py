"""Evaluating the policy on held-out prompts, always from the same random numbers, so that samples can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from burnish.metrics import validation_metrics
from burnish.rl.algorithm import Metrics
from burnish.tasks.job import Job
from burnish.training.ranks import Ranks
from burnish.types.completion import Lengths
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from burnish.utils.disk import writing
from burnish.utils.errors import Cancelled
from burnish.utils.paths import VALIDATION
from burnish.utils.reading import checked_path

SHOWN = 16  # prompts whose samples are kept
FRAMES = 4  # of a prompt's video that are kept
LONGEST = 2000  # characters of a prompt in the list of all
SAID, TOKENS = 2, 256  # samples of a prompt whose tokens are kept, and how many of each

# text, log-prob and entropy of each token that the policy chose; NaN where nobody knows the entropy
SaidTokens = Sequence[tuple[str, float, float]]


@dataclass
class Evaluated:
    """Samples of held-out prompts, in the order of the job's rows."""

    samples: Sequence[Any]
    scores: Scores
    lengths: Lengths | None = None  # of responses, in tokens
    tokens: Sequence[SaidTokens] = ()  # of responses, of the samples that are kept; empty for others


class Evaluation:
    """Samples and scores held-out prompts; keeps scores of all samples, and the samples of the first prompts."""

    def __init__(self, assembly: Any) -> None:
        self.assembly = assembly

    def __call__(self, target: Path | None, *, n: int, guidance: float | None = None) -> Metrics:
        """Several ranks share the prompts out, and all of them get the metrics; the first one keeps samples.

        Args:
            target: folder for samples and scores, if any.
            n: samples of a prompt.
            guidance: classifier-free guidance of a generator; None takes the run's.
        """
        ranks, job = self.assembly.ranks, self.job(n, guidance)
        found = self._all(ranks.rows, job)
        if target is not None and ranks.rank == 0:
            with writing(target):
                (target / "pictures").mkdir(parents=True, exist_ok=True)
                _write(target / "scores.jsonl", self._scores(job, n, found))
                _write(target / "prompts.jsonl", _prompts(job))
            kept = list(self._samples(target, job, n, found))
            with writing(target):
                _write(target / "samples.jsonl", kept, ascii=True)
            own = checked_path(self.assembly.config.output_dir) / VALIDATION
            if guidance is None and target.parent == own:  # a validation of the run's
                self._keep_files(int(target.name), job, found)
        return (
            validation_metrics(found.scores, job.prompts)
            | self.metrics(job, found)
            | {"val-aux/missing": float(found.scores.missing.float().mean())}
            | {"val-aux/num_samples": float(len(found.scores.missing))}
        )

    def job(self, n: int, guidance: float | None) -> Job:
        """What is sampled."""
        raise NotImplementedError

    def sampled(self, job: Any) -> Evaluated:
        """Sample and score in this process; there is at least one prompt."""
        raise NotImplementedError

    def without_shown(self, found: Evaluated) -> Evaluated:
        """The same for ranks that keep no samples: what metrics are made of."""
        return replace(found)

    def measured(self, job: Job, found: Evaluated) -> Mapping[str, Sequence[float]]:
        """What is known of each sample besides its scores, by name; NaN where it is not."""
        raise NotImplementedError

    def keep(self, target: Path, job: Job, n: int, found: Evaluated, shown: int) -> Sequence[dict[str, Any]]:
        """Write what the first samples show; what is recorded of each of them."""
        raise NotImplementedError

    def keep_file(self, folder: Path, job: Job, found: Evaluated, row: int) -> Mapping[str, Any]:
        """Write one sample in full; what is recorded of it."""
        raise NotImplementedError

    def metrics(self, job: Job, found: Evaluated) -> Metrics:
        """What this task reports besides rewards."""
        raise NotImplementedError

    @property
    def shown(self) -> int:
        """Prompts whose samples are kept, of whatever kind."""
        files = self.assembly.validation_files
        return SHOWN if files is None else max(SHOWN, files.options.prompts)

    def _keep_files(self, update: int, job: Job, found: Evaluated) -> None:
        """Keep samples as files with every field of their records, if the run says so."""
        files, assembly = self.assembly.validation_files, self.assembly
        if files is not None:
            files.keep(
                update, job.prompts, job.group, job.sample, found.scores,
                lambda folder, row: self.keep_file(folder, job, found, row),
                version=update, drawn=job.seeds(assembly.config.seed),
            )  # fmt: skip

    def _all(self, ranks: Ranks, job: Job) -> Evaluated:
        """What all ranks make of their shares, in their order.

        Raises:
            Cancelled: on all ranks, where one was cancelled. None may leave the others waiting for it.
        """
        own = job.share(ranks)
        try:
            with self.assembly.roles.shards.gathered_late(["policy"]):
                mine = [self.sampled(own) if own.prompts else None]
        except Cancelled:
            mine = []
        # what samples show goes to the rank that keeps it, and to no other
        shares = ranks.gather([None if one is None else self.without_shown(one) for one in mine])
        if not all(shares):
            raise Cancelled
        shown = ranks.to_first([None if one is None else one.samples for one in mine])
        found: list[Evaluated] = [one for share in shares for one in share if one is not None]
        for one, samples in zip(found, [one for share in shown for one in share if one is not None], strict=False):
            one.samples = samples
        lengths = [one.lengths for one in found if one.lengths is not None]
        scores, normaliser = Scores.cat([one.scores for one in found]), self.assembly.normaliser
        return Evaluated(
            [sample for one in found for sample in one.samples],
            scores if normaliser is None else normaliser.validated(scores),
            Lengths.cat(lengths) if lengths else None,
            [tokens for one in found for tokens in one.tokens],
        )

    def _scores(self, job: Job, n: int, found: Evaluated) -> Iterator[Mapping[str, Any]]:
        """A record for each sample, by which two evaluations are compared prompt by prompt."""
        measured = self.measured(job, found)
        for i, (prompt, number) in enumerate(zip(job.prompts, job.group.tolist(), strict=True)):
            reward, values = _components(found.scores, i)
            values |= {name: _known(column[i]) for name, column in measured.items()}
            yield {"index": number, "sample": i % n, "source": prompt.source, "reward": reward, "values": values}

    def _samples(self, target: Path, job: Job, n: int, found: Evaluated) -> Iterator[Mapping[str, Any]]:
        kept = self.keep(target, job, n, found, min(len(found.samples), SHOWN * n))
        for i, extra in enumerate(kept):
            reward, components = _components(found.scores, i)
            about: dict[str, Any] = {"prompt": job.prompts[i].text, "answer": job.prompts[i].answer}
            about |= {"index": int(job.group[i]), "sample": i % n}
            yield about | extra | {"reward": reward, "components": components, "note": found.scores.notes[i]}


def prompt_pictures(prompt: Prompt) -> Iterator[tuple[str, Image.Image]]:
    """What a prompt shows, each with a name: its pictures, some frames of its videos, and its further inputs.

    What it plays is not among them.
    """
    media = [*((str(number), one) for number, one in enumerate((*prompt.images, *prompt.videos))), *prompt.inputs]
    for name, one in media:
        if one.kind == "image":
            yield name, one.image()
            continue
        frames, _ = one.video(FRAMES)
        yield from ((f"{name}-{number}", Image.fromarray(frame)) for number, frame in enumerate(frames))


def _prompts(job: Job) -> Iterator[Mapping[str, Any]]:
    """What each prompt says: of most prompts no samples are kept, and a table of all of them names them."""
    seen: set[int] = set()
    for prompt, number in zip(job.prompts, job.group.tolist(), strict=True):
        if number not in seen:
            seen.add(number)
            text = prompt.turns[-1].text if prompt.messages else prompt.text
            answer = None if prompt.answer is None else prompt.answer[:LONGEST]
            yield {"index": number, "prompt": text[:LONGEST], "answer": answer, "source": prompt.source}


def _components(scores: Scores, row: int) -> tuple[float | None, dict[str, float | None]]:
    """A sample's reward, and the scores that it is made of; None where they are missing."""
    reward = None if scores.missing[row] else float(scores.reward[row])
    named = zip(scores.names, scores.components[row].tolist(), strict=True)
    return reward, {name: _known(value) for name, value in named} | scores.further[row]


def _known(value: float) -> float | None:
    return None if value != value else value


def _write(path: Path, records: Iterable[Mapping[str, Any]], *, ascii: bool = False) -> None:
    lines = [json.dumps(record, ensure_ascii=ascii) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
