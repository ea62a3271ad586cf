"""What came of an evaluation: a function of its records alone, so that merged parts give what the whole gives."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.evaluation.canaries import doubts
from burnish.evaluation.intervals import Estimate, difference, estimate
from burnish.evaluation.records import Header, Record
from burnish.evaluation.suite import REWARD, Suite
from burnish.utils.errors import UserError

ByTask = dict[str, dict[str, float]]  # the mean of the samples of a prompt, by task and identity of the prompt


def result_of(header: Header, records: Sequence[Record]) -> dict[str, Any]:
    """The result of a complete evaluation, or of a shard."""
    columns = columns_of(records)
    reasons = [*header.wrong, *doubts(header.number, header.alive, columns)]
    return {
        "suite": header.suite,
        "version": header.version,
        "changed": header.changed,
        "number": header.number,
        "believed": not reasons,
        "why_not": reasons,
        "unwatched": header.unwatched,
        "overall": _told(estimate(_values(records, header.number), header.overall, name=header.number)),
        "tasks": {
            task: _told(estimate({task: list(some.values())}, "prompts", name=header.number))
            for task, some in sorted(by_task(records, header.number).items())
        },
        "columns": {
            name: _told(estimate(_values(records, name), header.overall, name=name)) for name in sorted(columns)
        },
        "missing": {name: sum(value is None for value in values) for name, values in sorted(columns.items())},
        "prompts": len({record["index"] for record in records}),
        "samples": len(records),
        "settings": header.settings,
        "source": header.source,
        "update": header.update,
    }


def columns_of(records: Sequence[Record]) -> dict[str, list[float | None]]:
    """All values of every column."""
    names = dict.fromkeys(name for record in records for name in record["values"])
    return {name: [record["values"].get(name) for record in records] for name in names}


def by_task(records: Sequence[Record], column: str) -> ByTask:
    """The mean of every prompt's known samples."""
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        value = record["values"].get(column)
        if value is not None:
            found[record["task"]][f"{record['index']} {record['key']}"].append(value)
    return {
        task: {key: math.fsum(values) / len(values) for key, values in some.items()} for task, some in found.items()
    }


def changed(
    header: Header, before: Sequence[Record], after: Sequence[Record], column: str | None = None
) -> dict[str, Estimate]:
    """What changed between two evaluations: overall, and by task."""
    column = column or header.number
    return changes(header, by_task(before, column), by_task(after, column), column)


def changes(header: Header, was: ByTask, now: ByTask, column: str | None = None) -> dict[str, Estimate]:
    """The same of the means of prompts."""
    column = column or header.number
    found = {"overall": difference(was, now, header.overall, name=column)}
    for task in sorted(was.keys() & now.keys()):
        found[task] = difference({task: was[task]}, {task: now[task]}, "prompts", name=column)
    return found


def check_comparable(one: Header, other: Header) -> list[str]:
    """What differs between two evaluations besides the model, in sentences.

    Raises:
        UserError: they are of different suites or prompts.
    """
    for name in ("suite", "version", "prompts_digest", "n", "number", "overall"):
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours != theirs:
            raise UserError(f"these can't be compared: {name} is {ours!r} in one and {theirs!r} in the other")
    differing = [
        f"{name} is {value!r} before and {other.settings.get(name)!r} after"
        for name, value in one.settings.items()
        if value != other.settings.get(name)
    ]
    if one.digest != other.digest:
        differing.append("scorers or settings of the suite differ")
    return differing


def metrics_of(result: Mapping[str, Any]) -> dict[str, float]:
    """A result as metrics of a run."""
    head = f"suite/{result['suite']}"
    found = {f"{head}/overall": result["overall"]["value"], f"{head}/believed": float(result["believed"])}
    if len(result["tasks"]) > 1:
        found |= {f"{head}/task/{task}": one["value"] for task, one in result["tasks"].items()}
    further = {name: one["value"] for name, one in result["columns"].items() if name not in (result["number"], REWARD)}
    return found | {f"{head}/{name}": value for name, value in further.items() if value is not None}


def sampled_settings(suite: Suite, own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in force: the suite's, and the run's where it leaves them open."""
    return {name: own.get(name) if value is None else value for name, value in suite.settings.items()}


def _values(records: Sequence[Record], column: str) -> dict[str, list[float]]:
    return {task: list(some.values()) for task, some in by_task(records, column).items()}


def _told(one: Estimate) -> dict[str, Any]:
    value = None if math.isnan(one.value) else one.value
    return {"value": value, "low": one.low, "high": one.high, "prompts": one.prompts}
