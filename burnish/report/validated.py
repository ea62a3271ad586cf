"""Validations as plain data: means with intervals, prompts one by one, and samples of a prompt over the updates."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from burnish.config.run_folder import RunFolder
from burnish.report.points import Interval, short
from burnish.report.reading import leads_out
from burnish.report.run_list import stamp
from burnish.report.samples import ENOUGH, Sample, Samples, Scores, read_samples, read_scores
from burnish.utils.json_text import parse_json

MOST_UPDATES = 200  # validations of a walk
MOST_SCORED = 50  # validations whose scores are read: for intervals, data sources and the table of prompts
MOST_PROMPTS = 20_000
SPARK = 24  # values of the small curve of a prompt
LONGEST = 120_000  # characters of a text that is sent to a page
LABEL = 400  # characters of a prompt in a table
ENDS = 1.96  # standard errors of an interval that holds 95 %
ROUNDING = 1e-6  # relative, of rewards in float32
PROMPTS = "prompts.jsonl"  # of a validation


def chosen(updates: list[int], most: int = MOST_UPDATES) -> list[int]:
    """Evenly spaced ones, the first and the last among them."""
    if len(updates) <= most:
        return updates
    return [updates[round(i * (len(updates) - 1) / (most - 1))] for i in range(most)]


def scores_of(folder: RunFolder, update: int) -> Scores:
    """Scores of a validation, which are read again only when they have changed."""
    place = folder.validation(update)
    return _scores(str(place), *stamp(place / "scores.jsonl"), *stamp(place / "samples.jsonl"))


@lru_cache(maxsize=2 * MOST_UPDATES)
def _scores(place: str, *changed: int) -> Scores:
    return read_scores(Path(place))


def samples_of(folder: RunFolder, update: int) -> Samples:
    """Kept samples of a validation, read again only when they have changed."""
    place = folder.validation(update)
    return _samples(str(place), *stamp(place / "samples.jsonl"))


@lru_cache(maxsize=2 * MOST_UPDATES)
def _samples(place: str, *changed: int) -> Samples:
    return read_samples(Path(place))


def by_source(scores: Scores, name: str) -> dict[str, tuple[float, Interval]]:
    """The mean of a column with its interval, by data source; samples of a prompt are no independent evidence."""
    prompts: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    wanted, _, condition = name.partition("_given_")
    for (index, _), score in scores.items():
        value = score.of(wanted)
        if value is not None and (not condition or score.of(condition) == 1):
            prompts[score.source][index].append(value)
    found = {}
    for source, some in prompts.items():
        means = [math.fsum(values) / len(values) for values in some.values()]
        # a mean under a condition is one of samples, since prompts keep to it unequally often
        every = [value for values in some.values() for value in values]
        centre = math.fsum(every) / len(every) if condition else math.fsum(means) / len(means)
        error = standard_error(means)
        found[source] = (centre, None if error is None else (centre - ENDS * error, centre + ENDS * error))
    return found


def standard_error(values: list[float]) -> float | None:
    """Of a mean; None with too few values."""
    if len(values) < ENOUGH:
        return None
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1) / len(values))


def over_sources(sources: Mapping[str, tuple[float, Interval]]) -> tuple[float, Interval] | None:
    """The mean over data sources, each counted alike."""
    if not sources:
        return None
    centre = math.fsum(value for value, _ in sources.values()) / len(sources)
    if any(interval is None for _, interval in sources.values()):
        return centre, None
    half = math.sqrt(math.fsum((one[1] - value) ** 2 for value, one in sources.values() if one)) / len(sources)
    return centre, (centre - half, centre + half)


def prompt_table(folder: RunFolder) -> dict[str, Any]:
    """Every validation prompt with its rewards over the updates."""
    updates = chosen(folder.validations(), MOST_SCORED)
    sums: defaultdict[int, dict[int, list[float]]] = defaultdict(dict)
    sources: dict[int, str] = {}
    for update in updates:
        for (index, _), score in scores_of(folder, update).items():
            if score.reward is not None and (index in sums or len(sums) < MOST_PROMPTS):
                sums[index].setdefault(update, []).append(score.reward)
                sources[index] = score.source
    texts, room = prompt_texts(folder, updates), largest(sums.values())
    rows = [
        prompt_row(index, some, room) | _named(texts, index) | {"source": sources[index]}
        for index, some in sorted(sums.items())
    ]
    return {"updates": updates, "prompts": rows, "kept": sorted({at for at, _ in kept_samples(folder, updates)})}


def kept_samples(folder: RunFolder, updates: list[int]) -> Samples:
    """The samples of the newest validation that kept some."""
    return next((found for update in reversed(updates) if (found := samples_of(folder, update))), {})


def largest(rewards: Iterable[Mapping[int, list[float]]]) -> float:
    """The highest reward of any sample."""
    return max((value for one in rewards for values in one.values() for value in values), default=0.0)


def prompt_row(index: int, rewards: Mapping[int, list[float]], room: float) -> dict[str, Any]:
    """How a prompt went, as a table shows it.

    ``never`` is true where no later mean is above the first one, and there was room above it.
    """
    means = [math.fsum(values) / len(values) for values in rewards.values()]
    spreads = [max(values) - min(values) for values in rewards.values() if len(values) > 1]
    first, last, best = means[0], means[-1], max(means)
    later = max(means[1:], default=first)
    return {
        "index": index, "first": short(first), "last": short(last), "best": short(best),
        "change": short(0.0 if _alike(first, last) else last - first) if len(means) > 1 else None,
        "zero": short(sum(spread == 0 for spread in spreads) / len(spreads)) if spreads else None,
        "never": len(means) > 1 and first < room and (later <= first or _alike(first, later)),
        "spark": [short(means[row]) for row in chosen(list(range(len(means))), SPARK)],
    }  # fmt: skip


def _alike(value: float, other: float) -> bool:
    """Whether two means differ by the rounding of rewards alone."""
    return math.isclose(value, other, rel_tol=ROUNDING)


def prompt_texts(folder: RunFolder, updates: list[int]) -> dict[int, dict[str, Any]]:
    """Text and right answer of the validation prompts, by index, as the newest validation has them."""
    for update in reversed(updates):
        place = folder.validation(update)
        found = _texts(str(place), *stamp(place / PROMPTS))
        if found:
            return found
    return {index: {"prompt": one.prompt, "answer": one.answer} for (index, _), one in
            sorted(kept_samples(folder, updates).items(), reverse=True)}  # fmt: skip


@lru_cache(maxsize=8)
def _texts(place: str, *changed: int) -> dict[int, dict[str, Any]]:
    file = Path(place) / PROMPTS
    if not file.is_file() or leads_out(file, file.parents[2]):
        return {}
    found = {}
    for line in file.read_bytes().splitlines()[:MOST_PROMPTS]:
        try:
            one = parse_json(line)
            if isinstance(one["prompt"], str) and isinstance(one["answer"], str | None):
                found[int(one["index"])] = {"prompt": one["prompt"], "answer": one["answer"]}
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _named(texts: Mapping[int, Mapping[str, Any]], index: int) -> dict[str, Any]:
    one = texts.get(index, {})
    return {"prompt": cut(one.get("prompt", ""), LABEL), "answer": cut(one.get("answer"), LABEL)}


def cut(text: str | None, most: int = LONGEST) -> str | None:
    """A text that a page can take; what is left out is said."""
    if text is None or len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most} more characters)"


def walk(folder: RunFolder, index: int) -> dict[str, Any]:
    """The samples of a validation prompt at every update, made with the same noise."""
    found, asked = [], {}
    for update in chosen(folder.validations()):
        own = [(place, one) for place, one in samples_of(folder, update).items() if place[0] == index]
        if own:
            found.append({"update": update, "samples": [sample_data(folder, *one) for one in sorted(own, key=_place)]})
            asked = asked_data(folder, own[0][1])
    return {"index": index, "updates": found} | asked


def _place(one: tuple[tuple[int, int], Sample]) -> tuple[int, int]:
    return one[0]


def asked_data(folder: RunFolder, sample: Sample) -> dict[str, Any]:
    """What a prompt says and shows."""
    return {
        "prompt": cut(sample.prompt), "answer": cut(sample.answer),
        "shown": [inside for file in sample.shown if (inside := relative(file, folder))],
        "written": sample.response is not None,
    }  # fmt: skip


def sample_data(folder: RunFolder, place: tuple[int, int], sample: Sample) -> dict[str, Any]:
    """A sample with its scores; media by their path in the folder of the run."""
    found: dict[str, Any] = {
        "sample": place[1], "reward": short(sample.reward), "exact": sample.exact, "note": cut(sample.note, 2000),
        "components": {name: short(value) for name, value in sample.components.items()},
    }  # fmt: skip
    if sample.response is not None:
        return found | {"response": cut(sample.response), "tokens": sample.tokens}
    return found | {"file": relative(sample.picture, folder)}


def relative(file: Path, folder: RunFolder) -> str | None:
    """A file's path from its run's folder; None for one that is not there."""
    return file.relative_to(folder.path).as_posix() if file.is_file() else None


def lines_of(file: Path, most: int) -> Iterable[dict[str, Any]]:
    """The objects in a file of lines, of the last ``most`` bytes; others are left out."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - most))
            content = opened.read(most)
    except OSError:
        return
    lines = content.split(b"\n")
    for line in lines[1:] if size > most else lines:
        try:
            one = parse_json(line)
        except (ValueError, json.JSONDecodeError):
            continue
        if isinstance(one, dict):
            yield one
