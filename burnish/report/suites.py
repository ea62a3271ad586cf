"""Suites of a run's validations: values and their change with intervals, over the updates, and whether they count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.config.run_folder import RunFolder
from burnish.evaluation.records import HEADER, RECORDS, Folder, Header
from burnish.evaluation.results import ByTask, by_task, changes, result_of
from burnish.report.plain import MOST_SCORED, chosen, series
from burnish.utils.errors import UserError
from burnish.utils.paths import SUITES
from burnish.utils.records import fresh, leads_out

ABOUT = (
    "Means over the same prompts with the same noise. Brackets hold 95 % of the bootstrap over prompts; changes are "
    "paired by prompt."
)


@dataclass(frozen=True)
class Evaluation:
    """A complete evaluation of a suite."""

    header: Header
    result: dict[str, Any]
    means: ByTask  # of the suite's number

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal where two can be compared: the same prompts, asked and scored the same way."""
        one = self.header
        return one.version, one.primary_metric, one.aggregation, one.n, one.prompts_digest, one.digest


def suite_data(folder: RunFolder) -> list[dict[str, Any]]:
    """What a page shows of each suite: the first and the last evaluation, the change between them, and a curve."""
    places: defaultdict[str, dict[int, Path]] = defaultdict(dict)
    for place in sorted(folder.path.glob(f"validation/[0-9]*/{SUITES}/*")):
        outside = any(leads_out(place / name, folder.path) for name in (HEADER, RECORDS))
        if place.parents[1].name.isdecimal() and not outside:
            places[place.name][int(place.parents[1].name)] = place
    tables = []
    for _, by_update in sorted(places.items()):
        updates = chosen(list(by_update), MOST_SCORED)
        read = {update: one for update in updates if (one := fresh(_read, by_update[update], HEADER, RECORDS))}
        if read:
            last = read[max(read)]
            tables.append(_table({update: one for update, one in read.items() if one.key == last.key}))
    return tables


def _read(place: Path) -> Evaluation | None:
    """What is there; None where it is not complete, or was not written by a run."""
    try:
        records, header = Folder(place).complete(), Folder(place).header()
        assert header is not None, "a complete evaluation has a header"
        return Evaluation(header, result_of(header, records), by_task(records, header.primary_metric))
    except (UserError, TypeError, ValueError, ArithmeticError):
        return None


def _table(by_update: Mapping[int, Evaluation]) -> dict[str, Any]:
    ends = sorted({min(by_update), max(by_update)})
    header, sides = by_update[ends[-1]].header, [by_update[update] for update in ends]
    values = [one.result["overall"] for one in by_update.values()]
    intervals = [None if value["low"] is None else (value["low"], value["high"]) for value in values]
    points = [(update, value["value"]) for update, value in zip(by_update, values, strict=True)]
    changed = f", changed: {', '.join(header.changed)}" if header.changed else ""
    return {
        "name": header.suite, "note": f"{header.primary_metric}, {header.prompts} prompts × {header.n}{changed}",
        "doubts": [f"Not to be believed: {why}" for why in
                   dict.fromkeys(reason for side in sides for reason in side.result["why_not"])],
        "heads": [*(f"after {update} updates" for update in ends), *["change"] * (len(ends) > 1)],
        "rows": _rows(sides),
        "series": series("validation", "validation", points, intervals) if len(points) > 1 else None,
    }  # fmt: skip


def _rows(sides: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Values of each evaluation, then the change: overall, and by task."""
    first, last = sides[0], sides[-1]
    moved = changes(first.header, first.means, last.means) if len(sides) > 1 else {}
    rows = []
    for name in ["overall", *(first.result["tasks"] if len(first.result["tasks"]) > 1 else [])]:
        values = [{"overall": side.result["overall"], **side.result["tasks"]}.get(name, {}) for side in sides]
        cells = [*map(_cell, values), *([_cell(vars(moved[name]), "+")] if name in moved else [])]
        rows.append({"title": name, "cells": cells})
    return rows


def _cell(values: Mapping[str, Any], sign: str = "") -> dict[str, str]:
    value = values.get("value")
    if value is None or value != value:
        return {"text": "–"}
    cell = {"text": f"{value:{sign}.3f}".replace("-", "−")}
    if values["low"] is not None:
        cell["note"] = f"[{values['low']:{sign}.3f}, {values['high']:{sign}.3f}]".replace("-", "−")
    return cell
