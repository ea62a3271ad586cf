"""Samples, scores and prompts of validations, as their files hold them; and what of them a page can take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from os.path import islink
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from burnish.config.run_folder import RunFolder
from burnish.types.media import evenly_spaced
from burnish.utils.records import RECORD, cached, leads_out, read_records, stamp

SAMPLES, SCORES, PROMPTS = "samples.jsonl", "scores.jsonl", "prompts.jsonl"

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
    def image(self) -> Path:
        """File of an image, a clip or a sound; does not exist for a response."""
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


T = TypeVar("T")
Samples = Mapping[Place, Sample]
Scores = Mapping[Place, Score]
_SAMPLE, _SCORE, _PROMPT = TypeAdapter(Sample), TypeAdapter(Score), TypeAdapter(AskedPrompt)


@cached(lambda validation: stamp(validation / SAMPLES))
def read_samples(validation: Path) -> Samples:
    """Samples in the folder of a validation, without those whose files are not of this run."""
    return {(sample.index, sample.sample): sample for sample in each_sample(validation)}


def each_sample(validation: Path) -> Iterator[Sample]:
    """The same, one after the other: of many runs only the first is shown."""
    media, run = validation / "pictures", validation.parents[1]
    for sample in () if leads_out(media, run) else read_records(validation / SAMPLES, _SAMPLE, run):
        sample.media = media
        if not any(map(islink, (sample.image, *sample.shown))):
            yield sample


@cached(lambda validation: stamp(validation / SCORES))
def read_scores(validation: Path) -> Scores:
    """Scores of a validation."""
    records = read_records(validation / SCORES, _SCORE, validation.parents[1])
    return {(score.index, score.sample): score for score in records}


def newest(folder: RunFolder, read: Callable[[Path], T]) -> T | dict[Any, Any]:
    """What the newest validation has of which anything can be read."""
    validations = map(folder.validation, reversed(folder.validations()))
    return next(filter(None, map(read, validations)), {})


@cached(lambda validation: stamp(validation / PROMPTS))
def read_prompts(validation: Path) -> Mapping[int, dict[str, Any]]:
    """Text and right answer of the prompts of a validation, by index."""
    records = read_records(validation / PROMPTS, _PROMPT, validation.parents[1])
    return {prompt.index: {"prompt": prompt.prompt, "answer": prompt.answer} for prompt in records}


MOST_POINTS = 400  # of a curve
MOST_UPDATES = 200  # validations whose samples are shown
MOST_SCORED = 50  # validations whose scores are read: for intervals, data sources and the table of prompts
DIGITS = 6
LONGEST_TEXT = 120_000  # characters of a text

Points = list[tuple[int, float | None]]
Interval = tuple[float, float] | None


def short(value: float | None) -> float | None:
    """A number with as many digits as a page can show; None for what JSON can't hold."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def shorts(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Numbers by name, the same."""
    return {name: short(value) for name, value in values.items()}


def cut(text: str | None, most: int = LONGEST_TEXT) -> str | None:
    """A text of at most so many characters; what is left out is said."""
    if text is None or len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most} more characters)"


def chosen(items: Sequence[T], most: int = MOST_UPDATES) -> Sequence[T]:
    """Evenly spaced ones, the first and the last among them."""
    return [items[place] for place in evenly_spaced(len(items), most)]


def relative(file: Path, folder: RunFolder) -> str | None:
    """A file's path from its run's folder; None for one that is not there."""
    return file.relative_to(folder.path).as_posix() if file.is_file() else None


def fewer(points: Sequence[tuple[int, float | None]], most: int = MOST_POINTS) -> list[int]:
    """Positions of at most ``most`` points, 4 or more: of each stretch the lowest and the highest, and both ends."""
    if len(points) <= most:
        return list(range(len(points)))
    stretches = (most - 2) // 2
    kept = {0, len(points) - 1}
    for number in range(stretches):
        rows = range(number * len(points) // stretches, (number + 1) * len(points) // stretches)
        known = [(value, row) for row in rows if (value := points[row][1]) is not None]
        kept |= {min(known)[1], max(known)[1]} if known else {rows.start}
    return sorted(kept)


def series(
    name: str, style: str, points: Points, intervals: Sequence[Interval] = (), *, most: int = MOST_POINTS
) -> dict[str, Any]:
    """A line of a chart; ``intervals`` belong to its points."""
    rows = fewer(points, most)
    line: dict[str, Any] = {
        "name": name, "style": style,
        "x": [points[row][0] for row in rows], "y": [short(points[row][1]) for row in rows],
    }  # fmt: skip
    if any(intervals):
        sides = [intervals[row] or (None, None) for row in rows]  # a band goes straight on where there is none
        line |= {"low": [short(low) for low, _ in sides], "high": [short(high) for _, high in sides]}
    if len(rows) < len(points):  # extremes were kept: a smoothed line goes through the means between their neighbours
        around = zip([-1, *rows[:-1]], [*rows[1:], len(points)], strict=True)
        known = [[value for _, value in points[first + 1 : last] if value is not None] for first, last in around]
        line["mean"] = [short(fmean(values)) if values else None for values in known]
    return line
