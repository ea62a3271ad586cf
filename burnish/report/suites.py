"""Suites of a run, and of several beside each other: values and changes with intervals, and whether to believe them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.config.run_folder import RunFolder
from burnish.evaluation.records import HEADER, RECORDS, RESULT, Folder, Header
from burnish.evaluation.results import ByTask, by_task, changes, result_of
from burnish.report.plain import MOST_SCORED, Points, chosen, cut, series
from burnish.utils.errors import UserError
from burnish.utils.paths import SUITES
from burnish.utils.records import fresh, is_number, leads_out

ABOUT = (
    "Means over the same prompts with the same noise. Brackets hold 95 % of the bootstrap over prompts; changes are "
    "paired by prompt."
)
LONGEST = 200  # characters of a setting
MOST = 24  # evaluations of burnish eval that are read for a page


@dataclass(frozen=True)
class Side:
    """A complete evaluation of a suite."""

    update: int
    origin: str  # the folder of burnish eval; "" for a validation's
    header: Header
    result: dict[str, Any]
    means: ByTask  # of the suite's number

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal where two can be compared: the same prompts, asked and scored the same way."""
        one = self.header
        return one.suite, one.version, one.number, one.overall, one.n, one.prompts_digest, one.digest

    @property
    def title(self) -> str:
        """When it was made."""
        return f"after {self.update} updates{f', {self.origin}' if self.origin else ''}"


def suite_data(folder: RunFolder, others: Iterable[Path] = ()) -> list[dict[str, Any]]:
    """What a page shows of a run's suites; ``others`` are folders that may be evaluations of it."""
    tables = []
    for sides in evaluations(folder, others):
        ends = [sides[0], sides[-1]] if sides[-1].update > sides[0].update else [sides[-1]]
        heads = [*(side.title for side in ends), *(["change"] if len(ends) > 1 else [])]
        tables.append(_about(sides) | {"heads": heads, "rows": _rows(ends), "series": _curve(folder, sides)})
    return tables


def suites_beside(runs: Mapping[str, tuple[RunFolder, Sequence[Path]]]) -> list[dict[str, Any]]:
    """Suites that several runs were evaluated on in the same way, by the last evaluation of each; runs by name."""
    by_key: dict[tuple[Any, ...], dict[str, Side]] = {}
    for name, (folder, others) in runs.items():
        for sides in evaluations(folder, others):
            by_key.setdefault(sides[-1].key, {})[name] = sides[-1]
    tables = []
    for by_run in by_key.values():
        if len(by_run) > 1:
            first, *rest = by_run
            heads = [
                *(f"{name}, {side.title}" for name, side in by_run.items()),
                *(f"{name} − {first}" for name in rest),
            ]
            about = _about(list(by_run.values()))
            doubts = [f"{name}: {why}" for name, side in by_run.items() for why in _about([side])["doubts"]]
            about["doubts"] = doubts + _differing(by_run)
            tables.append(about | {"heads": heads, "rows": _rows(list(by_run.values()))})
    return tables


def evaluations(folder: RunFolder, others: Iterable[Path] = ()) -> list[list[Side]]:
    """What can be compared together, by update. Of validations it is the first and the last one.

    Args:
        folder: of the run.
        others: folders outside of it that may be evaluations of it.
    """
    by_key: defaultdict[tuple[Any, ...], list[Side]] = defaultdict(list)
    for side in (*_validated(folder), *_evaluated(folder, others)):
        by_key[side.key].append(side)
    return [sorted(sides, key=lambda side: (side.update, side.origin)) for _, sides in sorted(by_key.items())]


def _validated(folder: RunFolder) -> Iterator[Side]:
    """The first and the last complete evaluation of each suite by validations."""
    for places in _places(folder).values():
        ends: dict[int, Side] = {}
        for way in (sorted(places), sorted(places, reverse=True)):
            sides = (_side(places[update], folder.path, update) for update in way)
            if (side := next(filter(None, sides), None)) is not None:
                ends[side.update] = side
        yield from ends.values()


def _places(folder: RunFolder) -> dict[str, dict[int, Path]]:
    """Folders of evaluations by validations, by suite and update."""
    places: defaultdict[str, dict[int, Path]] = defaultdict(dict)
    for place in sorted(folder.path.glob(f"validation/[0-9]*/{SUITES}/*")):
        if place.is_dir() and place.parents[1].name.isdecimal():
            places[place.name][int(place.parents[1].name)] = place
    return dict(sorted(places.items()))


def _evaluated(folder: RunFolder, others: Iterable[Path]) -> Iterator[Side]:
    """Evaluations of burnish eval, which know after how many updates they were made, of the run or its checkpoints."""
    inside = [place.parent for pattern in ("*", "*/*") for place in sorted(folder.path.glob(f"{pattern}/{HEADER}"))]
    updates = {}
    for place, limit in [*((place, folder.path) for place in inside), *((place, place) for place in others)]:
        header = None if leads_out(place / HEADER, limit) else fresh(_read_header, place, HEADER)
        if header is None or header.update is None or header.shard is not None:
            continue
        if not leads_out(Path(header.source), folder.path):
            updates[place, limit] = header.update
    sides = (_side(*places, update, places[0].name) for places, update in list(updates.items())[:MOST])
    yield from filter(None, sides)


def _side(place: Path, limit: Path, update: int, origin: str = "") -> Side | None:
    """What is there, where it is complete, and not put there by somebody else."""
    if any(leads_out(place / name, limit) for name in (HEADER, RECORDS)):
        return None
    read = fresh(_read, place, HEADER, RECORDS)
    return None if read is None else Side(update, origin, *read)


def _read_header(place: Path) -> Header | None:
    try:
        return Folder(place).header()
    except (UserError, TypeError, ValueError):
        return None


def _read(place: Path) -> tuple[Header, dict[str, Any], ByTask] | None:
    try:
        records, header = Folder(place).complete(), _read_header(place)
        return None if header is None else (header, result_of(header, records), by_task(records, header.number))
    except (UserError, TypeError, ValueError, ArithmeticError):
        return None


def _curve(folder: RunFolder, sides: Sequence[Side]) -> dict[str, Any] | None:
    """The suite's number over the updates, with intervals; None where there are fewer than two."""
    values = {side.update: side.result["overall"] for side in sides}
    places = {} if all(side.origin for side in sides) else _places(folder).get(sides[0].header.suite, {})
    for update in chosen(sorted(places), MOST_SCORED):
        if update not in values and not leads_out(places[update] / RESULT, folder.path):
            values |= {update: overall} if (overall := fresh(_read_overall, places[update], RESULT)) else {}
    points: Points = [(update, one["value"]) for update, one in sorted(values.items())]
    ends = [(one["low"], one["high"]) if one["low"] is not None else None for _, one in sorted(values.items())]
    return series("validation", "validation", points, ends) if len(points) > 1 else None


def _read_overall(place: Path) -> dict[str, Any] | None:
    """The number of a validation, as it was written beside its records."""
    try:
        one = (Folder(place).result() or {}).get("overall")
    except UserError:
        return None
    if not isinstance(one, dict) or not is_number(one.get("value")):
        return None
    return one if is_number(one.get("low")) and is_number(one.get("high")) else one | {"low": None, "high": None}


def _about(sides: Sequence[Side]) -> dict[str, Any]:
    header = sides[-1].header
    reasons = dict.fromkeys(reason for side in sides for reason in side.result["why_not"])
    changed = f", changed: {', '.join(header.changed)}" if header.changed else ""
    return {
        "name": header.suite, "note": f"{header.number}, {header.prompts} prompts × {header.n}{changed}",
        "doubts": [f"Not to be believed: {reason}" for reason in reasons],
    }  # fmt: skip


def _differing(by_run: Mapping[str, Side]) -> list[str]:
    """Settings that the evaluations of runs differ in, which the suite leaves open."""
    (first, one), *rest = by_run.items()
    return [
        f"Not the model alone: {key} is {cut(repr(value), LONGEST)} in {first} and "
        f"{cut(repr(other.header.settings.get(key)), LONGEST)} in {name}"
        for name, other in rest
        for key in one.header.settings | other.header.settings
        if (value := one.header.settings.get(key)) != other.header.settings.get(key)
    ]


def _rows(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Values of each, then the changes from the first to each of the others: overall, and by task."""
    first, *rest = sides
    moved = [changes(first.header, first.means, side.means) for side in rest]
    tasks = [task for task in first.result["tasks"] if all(task in side.result["tasks"] for side in rest)]
    rows = []
    for name in ["overall", *(tasks if len(first.result["tasks"]) > 1 else [])]:
        values = [side.result["overall"] if name == "overall" else side.result["tasks"][name] for side in sides]
        cells = [*map(_cell, values), *(_cell(vars(change[name]), "+") for change in moved if name in change)]
        rows.append({"title": name, "cells": cells})
    return rows


def _cell(values: Mapping[str, Any], sign: str = "") -> dict[str, str]:
    if values["value"] is None or values["value"] != values["value"]:
        return {"text": "–"}
    cell = {"text": f"{values['value']:{sign}.3f}".replace("-", "−")}
    if values["low"] is not None:
        cell["note"] = f"[{values['low']:{sign}.3f}, {values['high']:{sign}.3f}]".replace("-", "−")
    return cell
