"""What came of an evaluation: a function of its records alone, so that merged parts give what the whole gives.

Every mean has a bootstrap interval over prompts: those of a prompt's samples are no independent evidence.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from burnish.evaluation.records import Header, Record
from burnish.evaluation.suite import REWARD, Suite
from burnish.utils.errors import UserError

DRAWS = 2000
FEWEST = 5  # prompts of an interval
MISSING = 0.01  # share of missing values, from which on a result is doubted

Aggregation = Literal["prompts", "tasks"]
ByTask = dict[str, dict[str, float]]  # the mean of the samples of a prompt, by task and identity of the prompt


@dataclass(frozen=True)
class Estimate:
    """A number, and where it may lie if other prompts of the same kind had been asked."""

    value: float | None  # None: there is none
    low: float | None = None  # None: too few prompts
    high: float | None = None
    prompts: int = 0


def estimate(values: ByTask, aggregation: Aggregation, name: str) -> Estimate:
    """A mean with the interval that holds 95 % of the bootstrap.

    Args:
        values: the mean of the samples of each prompt, by task, within which prompts are drawn again.
        aggregation: mean over all prompts, or the mean of the means of tasks.
        name: of what is estimated; it seeds the draws, so that the same records give the same interval.
    """
    tasks = [np.asarray(list(own.values())) for _, own in sorted(values.items()) if own]
    count = sum(map(len, tasks))
    if not count:
        return Estimate(None)
    weights = [len(own) / count if aggregation == "prompts" else 1 / len(tasks) for own in tasks]
    value = math.fsum(weight * math.fsum(own) / len(own) for weight, own in zip(weights, tasks, strict=True))
    if count < FEWEST or min(map(len, tasks)) < 2:
        return Estimate(value, prompts=count)
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = np.zeros(DRAWS)
    for weight, own in zip(weights, tasks, strict=True):
        drawn += weight * own[generator.integers(0, len(own), (DRAWS, len(own)))].mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(value, float(low), float(high), count)


def result_of(header: Header, records: Sequence[Record]) -> dict[str, Any]:
    """The result of a complete evaluation, or of a shard."""
    metric = header.primary_metric
    names = sorted({name for record in records for name in record["values"]})
    columns = {name: [record["values"].get(name) for record in records] for name in names}
    reasons = [*header.wrong, *_doubts(header, columns)]
    return {
        "suite": header.suite,
        "version": header.version,
        "changed": header.changed,
        "primary_metric": metric,
        "valid": not reasons,
        "why_not": reasons,
        "unwatched": header.unwatched,
        "overall": asdict(estimate(by_task(records, metric), header.aggregation, metric)),
        "tasks": {
            task: asdict(estimate({task: own}, "prompts", metric))
            for task, own in sorted(by_task(records, metric).items())
        },
        "columns": {name: asdict(estimate(by_task(records, name), header.aggregation, name)) for name in names},
        "missing": {name: sum(value is None for value in values) for name, values in columns.items()},
        "prompts": len({record["index"] for record in records}),
        "samples": len(records),
        "settings": header.settings,
        "source": header.source,
        "update": header.update,
    }


def _doubts(header: Header, columns: Mapping[str, Sequence[float | None]]) -> list[str]:
    """What the scores of a complete suite say against themselves."""
    doubts = []
    values = columns.get(header.primary_metric, [])
    missing = sum(value is None for value in values)
    if missing > MISSING * len(values):
        doubts.append(f"{missing} of {len(values)} values of {header.primary_metric} are missing")
    if header.alive is not None and not any(columns.get(header.alive, ())):
        doubts.append(f"{header.alive} is 0 for all {len(values)} samples: the scorer saw nothing in any of them")
    return doubts


def by_task(records: Sequence[Record], column: str) -> ByTask:
    """The mean of every prompt's known samples."""
    values_of: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        value = record["values"].get(column)
        if value is not None:
            values_of[record["task"]][f"{record['index']} {record['key']}"].append(value)
    return {
        task: {key: math.fsum(values) / len(values) for key, values in own.items()} for task, own in values_of.items()
    }


def changes(header: Header, before: ByTask, after: ByTask) -> dict[str, Estimate]:
    """What changed between two evaluations, paired by prompt: both had the same noise. Overall, and by task."""
    paired = {
        task: {key: value - before[task][key] for key, value in sorted(own.items()) if key in before[task]}
        for task, own in sorted(after.items())
        if task in before
    }
    name = header.primary_metric
    by_one = {task: estimate({task: own}, "prompts", name) for task, own in paired.items()}
    return {"overall": estimate(paired, header.aggregation, name)} | by_one


def check_comparable(one: Header, other: Header) -> list[str]:
    """What differs between two evaluations besides the model, in sentences.

    Raises:
        UserError: they are of different suites or prompts.
    """
    for name in ("suite", "version", "prompts_digest", "n", "primary_metric", "aggregation"):
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
    values = {"overall": result["overall"]["value"], "valid": float(result["valid"])}
    if len(result["tasks"]) > 1:
        values |= {f"task/{task}": one["value"] for task, one in result["tasks"].items()}
    others = result["columns"].keys() - {result["primary_metric"], REWARD}
    values |= {name: result["columns"][name]["value"] for name in sorted(others)}
    return {f"{head}/{name}": value for name, value in values.items() if value is not None}


def sampled_settings(suite: Suite, own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in force: the suite's, and the run's where it leaves them open."""
    return {name: own.get(name) if value is None else value for name, value in suite.settings.items()}
