"""Samples and scores of a validation, and confidence intervals of changes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.report.reading import is_number, leads_out
from burnish.utils.json_text import parse_json

ENOUGH = 4  # fewest prompts for a std
LONGEST = 1 << 20  # bytes of a sample that is shown in the table of runs

Said = tuple[tuple[str, float, float | None], ...]  # text, log-prob, entropy if it is known


@dataclass(frozen=True)
class Sample:
    """A saved image or response with its score."""

    prompt: str
    reward: float | None  # None: missing
    components: dict[str, float | None]
    note: str
    picture: Path  # file of a picture, a clip or a sound; does not exist for a response
    response: str | None = None
    shown: tuple[Path, ...] = ()  # images of the prompt
    answer: str | None = None  # right answer
    tokens: Said = ()  # of a response

    @property
    def exact(self) -> bool | None:
        """Whether the text or the answer is exactly right; None if unknown."""
        value = self.components.get("ocr_exact" if self.response is None else "exact")
        return None if value is None else value == 1


Samples = dict[tuple[int, int], Sample]  # by index of the prompt and of the sample


def read_samples(validation: Path) -> Samples:
    """Samples in the folder of a validation; a truncated line is ignored."""
    file = validation / "samples.jsonl"
    if not file.is_file() or leads_out(file, validation.parents[1]):
        return {}
    return _samples(file.read_bytes().splitlines(), validation)


def _samples(lines: Iterable[bytes], validation: Path) -> Samples:
    found: Samples = {}
    run = validation.parents[1]
    for line in lines:
        try:
            sample, place = _sample(parse_json(line), validation / "pictures")
            if any(leads_out(path, run) for path in (sample.picture, *sample.shown)):
                raise ValueError("a picture is not of this run")
        except (ValueError, KeyError, TypeError):
            continue
        found[place] = sample
    return found


def first_sample(validation: Path) -> Sample | None:
    """The first sample of a validation; None if it kept none."""
    file = validation / "samples.jsonl"
    if not file.is_file() or leads_out(file, validation.parents[1]):
        return None
    with file.open("rb") as opened:
        line = opened.readline(LONGEST)
    return next(iter(_samples([line], validation).values()), None)


def _sample(line: Any, pictures: Path) -> tuple[Sample, tuple[int, int]]:
    """A parsed line of samples.jsonl.

    Raises:
        ValueError, KeyError, TypeError: it was not written by a run.
    """
    place = (int(line["index"]), int(line["sample"]))
    sample = Sample(
        prompt=line["prompt"],
        reward=line["reward"],
        components=line["components"],
        note=line["note"],
        picture=pictures / line.get("file", f"{place[0]:03d}-{place[1]:02d}.png"),
        response=line.get("response"),
        shown=tuple(pictures / name for name in line.get("images", ())),
        answer=line.get("answer"),
        tokens=said(line),
    )
    texts = [sample.prompt, sample.note, sample.response or "", sample.answer or ""]
    numbers = [sample.reward, *sample.components.values()] if isinstance(sample.components, dict) else ["none"]
    if not all(isinstance(text, str) for text in texts) or not all(one is None or is_number(one) for one in numbers):
        raise ValueError("wrong types")
    return sample, place


def said(line: Any) -> Said:
    """The tokens of a record with their log-probs; none of a record without them.

    Raises:
        ValueError, TypeError: they were not written by a run.
    """
    texts, logprobs = line.get("token_texts") or [], line.get("token_logprobs") or []
    entropies = line.get("token_entropies") or [None] * len(texts)
    found = tuple(zip(texts, logprobs, entropies, strict=True))
    if any(not isinstance(text, str) or not is_number(logprob) for text, logprob, _ in found):
        raise ValueError("wrong types")
    if any(not (entropy is None or is_number(entropy)) for _, _, entropy in found):
        raise ValueError("wrong types")
    return found


@dataclass(frozen=True)
class Score:
    """The score of a sample of a validation."""

    source: str  # data source of the prompt
    reward: float | None  # None: missing
    values: dict[str, float | None]  # components and further numbers

    def of(self, name: str) -> float | None:
        """The reward, a component or another number by name; None if there is none."""
        return self.reward if name == "reward" else self.values.get(name)


Scores = dict[tuple[int, int], Score]  # by index of the prompt and of the sample


def read_scores(validation: Path) -> Scores:
    """Scores of a validation; of an older run, those of the saved samples."""
    file = validation / "scores.jsonl"
    if not file.is_file() or leads_out(file, validation.parents[1]):
        kept = read_samples(validation)
        return {place: Score("default", sample.reward, sample.components) for place, sample in kept.items()}
    found: Scores = {}
    for parsed in _parsed(file.read_bytes().splitlines()):
        try:
            score = Score(str(parsed["source"]), parsed["reward"], dict(parsed["values"]))
            place = int(parsed["index"]), int(parsed["sample"])
        except (ValueError, KeyError, TypeError):
            continue
        if all(one is None or is_number(one) for one in (score.reward, *score.values.values())):
            found[place] = score
    return found


def _parsed(lines: list[bytes]) -> Iterable[Any]:
    """What lines hold: all at once, which is faster, or one by one where one of them is damaged."""
    try:
        together: list[Any] = parse_json(b"[" + b",".join(line for line in lines if line.strip()) + b"]")
    except ValueError:
        for line in lines:
            with suppress(ValueError):
                yield parse_json(line)
    else:
        yield from together


def chance(before: Mapping[tuple[int, int], Score], after: Mapping[tuple[int, int], Score], name: str) -> float:
    """Two standard errors of the change of a mean between two validations.

    Samples are paired by prompt and random numbers. Samples of a prompt are not independent, so the variance is that
    over prompts. Data sources have equal weights, as in the metrics.

    Args:
        before: of one validation.
        after: of another.
        name: ``reward``, or a name of ``values``; ``A_given_B`` is the mean of A where B is 1.

    Returns:
        0 without scores, infinity with too few prompts.
    """
    moves = _moves(before, after, name)
    count = sum(map(len, moves.values()))
    if not count:
        return 0.0
    if min(count, _meeting(before, name), _meeting(after, name)) < ENOUGH:
        return math.inf
    every = _variance([move for some in moves.values() for move in some])
    errors = [(_variance(some) if len(some) >= ENOUGH else every) / len(some) for some in moves.values()]
    return 2 * math.sqrt(math.fsum(errors)) / len(moves)


def _meeting(scores: Mapping[tuple[int, int], Score], name: str) -> int:
    """Prompts of which a sample meets the condition of ``A_given_B``; of a few, a mean says nothing, however alike."""
    _, _, condition = name.partition("_given_")
    return len({index for (index, _), one in scores.items() if not condition or one.of(condition) == 1})


def _moves(
    before: Mapping[tuple[int, int], Score], after: Mapping[tuple[int, int], Score], name: str
) -> dict[str, list[float]]:
    """Contribution of every prompt to the change of the mean, by data source."""
    wanted, _, condition = name.partition("_given_")
    sums: defaultdict[str, dict[int, list[float]]] = defaultdict(dict)  # before: sum, count; after: sum, count
    for place in before.keys() & after.keys():
        pair = before[place], after[place]
        values = [one.of(wanted) for one in pair]
        if None in values and not condition:
            continue
        row = sums[pair[1].source].setdefault(place[0], [0.0] * 4)
        for side, (one, value) in enumerate(zip(pair, values, strict=True)):
            if value is not None and (not condition or one.of(condition) == 1):
                row[2 * side] += value
                row[2 * side + 1] += 1
    moves = {}
    for source, rows in sums.items():
        total, count = [math.fsum(column) for column in zip(*rows.values(), strict=True)], len(rows)
        if total[1] and total[3]:
            was, now = total[0] / total[1], total[2] / total[3]
            moves[source] = [
                count * ((row[2] - now * row[3]) / total[3] - (row[0] - was * row[1]) / total[1])
                for row in rows.values()
            ]
    return moves


def _variance(values: list[float]) -> float:
    centre = math.fsum(values) / len(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)
