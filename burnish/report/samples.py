"""Samples, scores and prompts of validations, as their files hold them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from burnish.config.run_folder import RunFolder
from burnish.utils.records import RECORD, fresh, leads_out, read_records

SAMPLES, SCORES, PROMPTS = "samples.jsonl", "scores.jsonl", "prompts.jsonl"
LONGEST = 1 << 20  # bytes of a sample that is shown in the table of runs

Tokens = list[tuple[str, float, float | None]]  # text, log-prob, entropy if it is known
Place = tuple[int, int]  # index of the prompt and of the sample


@dataclass(config=RECORD, kw_only=True)
class TokenFields:
    """The tokens of a response, as records hold them."""

    token_texts: list[str] | None = None
    token_logprobs: list[float] | None = None
    token_entropies: list[float | None] | None = None

    @property
    def tokens(self) -> Tokens:
        """With log-probs; none where they are not recorded."""
        texts = self.token_texts or []
        return list(zip(texts, self.token_logprobs or [], self.token_entropies or [None] * len(texts), strict=False))


@dataclass(config=RECORD, kw_only=True)
class Sample(TokenFields):
    """A saved image or response with its score."""

    index: int
    sample: int
    prompt: str
    reward: float | None  # None: missing
    components: dict[str, float | None]
    note: str
    file: str | None = None
    response: str | None = None
    images: list[str] = Field(default_factory=list)  # of the prompt
    answer: str | None = None  # right answer
    media: Path = field(default=Path(), init=False)  # folder of the files

    @property
    def picture(self) -> Path:
        """File of a picture, a clip or a sound; does not exist for a response."""
        return self.media / Path(self.file or f"{self.index:03d}-{self.sample:02d}.png").name

    @property
    def shown(self) -> list[Path]:
        """Images of the prompt."""
        return [self.media / Path(name).name for name in self.images]

    @property
    def exact(self) -> bool | None:
        """Whether the text or the answer is exactly right; None if unknown."""
        value = self.components.get("ocr_exact" if self.response is None else "exact")
        return None if value is None else value == 1


@dataclass(config=RECORD)
class Score:
    """The score of a sample of a validation."""

    source: str  # data source of the prompt
    reward: float | None  # None: missing
    values: dict[str, float | None]  # components and further numbers
    index: int = 0
    sample: int = 0

    def of(self, name: str) -> float | None:
        """The reward, a component or another number by name; of ``A_given_B`` A where B is 1. None if there is none."""
        name, _, condition = name.partition("_given_")
        if condition and self.of(condition) != 1:
            return None
        return self.reward if name == "reward" else self.values.get(name)


@dataclass(config=RECORD)
class AskedPrompt:
    """A prompt of a validation."""

    index: int
    prompt: str
    answer: str | None


Samples = Mapping[Place, Sample]
Scores = Mapping[Place, Score]
_SAMPLE, _SCORE, _PROMPT = TypeAdapter(Sample), TypeAdapter(Score), TypeAdapter(AskedPrompt)


def read_samples(validation: Path) -> Samples:
    """Samples in the folder of a validation, read again only when they have changed."""
    return fresh(_read_samples, validation, SAMPLES)


def _read_samples(validation: Path) -> Samples:
    records = read_records(validation / SAMPLES, _SAMPLE, validation.parents[1], most=1 << 40)
    return {(sample.index, sample.sample): sample for sample in records if _with_media(sample, validation)}


def _with_media(sample: Sample, validation: Path) -> bool:
    """Say where the files of a sample are; whether they are all of this run."""
    sample.media = validation / "pictures"
    return not any(leads_out(path, validation.parents[1]) for path in (sample.picture, *sample.shown))


def first_sample(validation: Path) -> Sample | None:
    """The first sample of a validation; None if it kept none."""
    return fresh(_read_first, validation, SAMPLES, most=1000)


def _read_first(validation: Path) -> Sample | None:
    file = validation / SAMPLES
    if file.is_file() and not leads_out(file, validation.parents[1]):
        with file.open("rb") as opened, suppress(ValidationError):
            sample = _SAMPLE.validate_json(opened.readline(LONGEST))
            return sample if _with_media(sample, validation) else None
    return None


def read_scores(validation: Path) -> Scores:
    """Scores of a validation, read again only when they have changed; without a file of them those of the samples."""
    return fresh(_read_scores, validation, SCORES, SAMPLES)


def _read_scores(validation: Path) -> Scores:
    file = validation / SCORES
    if not file.is_file() or leads_out(file, validation.parents[1]):
        kept = read_samples(validation)
        return {place: Score("default", sample.reward, sample.components) for place, sample in kept.items()}
    return {
        (score.index, score.sample): score for score in read_records(file, _SCORE, validation.parents[1], most=1 << 40)
    }


def newest_samples(folder: RunFolder) -> Samples:
    """The samples of the newest validation that kept some."""
    validations = map(folder.validation, reversed(folder.validations()))
    return next(filter(None, map(read_samples, validations)), {})


def prompt_texts(folder: RunFolder) -> dict[int, dict[str, Any]]:
    """Text and right answer of the validation prompts, by index, as the newest validation has them."""
    for update in reversed(folder.validations()):
        if prompts := fresh(_read_prompts, folder.validation(update), PROMPTS):
            return prompts
    ordered = sorted(newest_samples(folder).items(), reverse=True)  # the first sample of a prompt counts
    return {index: {"prompt": one.prompt, "answer": one.answer} for (index, _), one in ordered}


def _read_prompts(validation: Path) -> dict[int, dict[str, Any]]:
    records = read_records(validation / PROMPTS, _PROMPT, validation.parents[1])
    return {prompt.index: {"prompt": prompt.prompt, "answer": prompt.answer} for prompt in records}
