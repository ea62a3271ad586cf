"""Suites of a run, and of several beside each other: values and changes with intervals, and whether to believe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from burnish.config.run_folder import RunFolder
from burnish.evaluation.intervals import Estimate
from burnish.evaluation.results import changes
from burnish.report.evaluated import Side, curve, evaluations
from burnish.report.validated import cut

TITLE = "Suites"
ABOUT = (
    "Means over the same prompts with the same noise. Brackets hold 95 % of the bootstrap over prompts; changes are "
    "paired by prompt."
)
LONGEST = 200  # characters of a setting


def suites_section(folder: RunFolder) -> str:
    """The tables of all suites; "" where none was run."""
    tables = [_table(one) for one in suite_data(folder)]
    return f"<h2>{TITLE}</h2><p>{ABOUT}</p>{''.join(tables)}" if tables else ""


def suite_data(folder: RunFolder, others: Iterable[Path] = ()) -> list[dict[str, Any]]:
    """What a page shows of a run's suites; ``others`` are folders that may be evaluations of it."""
    found = []
    for sides in evaluations(folder, others):
        first, last = sides[0], sides[-1]
        heads = [_when(first), _when(last), "change"] if last.update > first.update else [_when(last)]
        rows = _rows([first, last] if len(heads) > 1 else [last])
        found.append(_about(sides) | {"heads": heads, "rows": rows, "series": curve(folder, sides)})
    return found


def suites_beside(runs: Mapping[str, tuple[RunFolder, Sequence[Path]]]) -> list[dict[str, Any]]:
    """Suites that several runs were evaluated on in the same way, by the last evaluation of each; runs by name."""
    found: dict[tuple[Any, ...], dict[str, Side]] = {}
    for name, (folder, others) in runs.items():
        for sides in evaluations(folder, others):
            found.setdefault(sides[-1].key, {})[name] = sides[-1]
    tables = []
    for by_run in found.values():
        if len(by_run) > 1:
            first, *rest = by_run
            heads = [f"{name}, {_when(side)}" for name, side in by_run.items()]
            heads += [f"{name} − {first}" for name in rest]
            about = _about(list(by_run.values()))
            doubts = [f"{name}: {why}" for name, side in by_run.items() for why in _about([side])["doubts"]]
            about["doubts"] = doubts + _differing(by_run)
            tables.append(about | {"heads": heads, "rows": _rows(list(by_run.values()))})
    return tables


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


def _when(side: Side) -> str:
    return f"after {side.update} updates{f', {side.origin}' if side.origin else ''}"


def _rows(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Values of each, then the changes from the first to each of the others: overall, and by task."""
    first, *rest = sides
    found = [changes(first.header, first.means, side.means) for side in rest]
    tasks = [task for task in first.result["tasks"] if all(task in side.result["tasks"] for side in rest)]
    rows = []
    for name in ["overall", *(tasks if len(first.result["tasks"]) > 1 else [])]:
        values = [side.result["overall"] if name == "overall" else side.result["tasks"][name] for side in sides]
        moved = [one[name] for one in found if name in one]
        rows.append({"title": name, "cells": [_cell(one) for one in (*values, *moved)]})
    return rows


def _cell(one: Mapping[str, Any] | Estimate) -> dict[str, str]:
    signed = isinstance(one, Estimate)
    values = vars(one) if isinstance(one, Estimate) else one
    if values["value"] is None or values["value"] != values["value"]:
        return {"text": "–"}
    sign = "+" if signed else ""
    cell = {"text": f"{values['value']:{sign}.3f}".replace("-", "−")}
    if values["low"] is not None:
        cell["note"] = f"[{values['low']:{sign}.3f}, {values['high']:{sign}.3f}]".replace("-", "−")
    return cell


def _table(one: Mapping[str, Any]) -> str:
    head = "".join(f'<th class="n">{escape(text)}</th>' for text in ["", *one["heads"]])
    rows = "".join(
        f"<tr><td>{escape(row['title'])}</td>{''.join(map(_html, row['cells']))}</tr>" for row in one["rows"]
    )
    doubts = "".join(f"<p>{escape(reason)}</p>" for reason in one["doubts"])
    warning = f'<div class="warning">{doubts}</div>' if doubts else ""
    return (
        f"<h3>{escape(one['name'])}</h3><p>{escape(one['note'])}</p>{warning}"
        f'<div class="wide"><table class="sources"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _html(cell: Mapping[str, str]) -> str:
    note = f"<small>{escape(cell['note'])}</small>" if "note" in cell else ""
    return f'<td class="n">{escape(cell["text"])}{note}</td>'
