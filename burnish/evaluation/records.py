"""The folder of an evaluation: what was evaluated, a record per sample, and what came of it.

What came of it is a function of its records alone. Every mean has a bootstrap interval over prompts: those of a
prompt's samples are no independent evidence.

Prompts are evaluated in units of fixed size, each sampled and scored as a batch of its own. So every batch has the same
shape however the work is divided: a killed evaluation goes on with the first unit that is not complete, and shards do
some of the units each, in files of their own beside each other.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from burnish.evaluation.sanity_checks import REWARD
from burnish.evaluation.suite import Suite
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.reading import read_file

HEADER, RECORDS, RESULT, MEDIA = "suite.json", "samples.jsonl", "result.json", "media"
MOST = 10**7  # prompts, samples of a prompt, shards

Record = dict[str, Any]
Shard = tuple[int, int]  # number and count, counted from 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """What an evaluation is of. Two with equal ``identity`` are parts of the same one."""

    suite: str
    version: int
    changed: list[str]  # options that differ from the suite of that name
    digest: str  # of settings and scorers
    prompts_digest: str
    prompts: Annotated[int, Field(ge=1, le=MOST)]
    n: Annotated[int, Field(ge=1, le=MOST)]
    primary_metric: str  # the column that the suite is about
    aggregation: Literal["prompts", "tasks"]
    alive: str | None = None  # a column that is above 0 somewhere, where the scorer works
    unit: Annotated[int, Field(ge=1, le=MOST)]  # prompts of a batch
    settings: dict[str, Any]  # as they were sampled
    source: str  # of the model
    model: dict[str, str]  # what the weights are, by hashes
    update: int | None = None  # policy updates behind them
    wrong: list[str]  # sanity checks that were answered wrongly
    unwatched: list[str]  # scorers that no sanity check looks at

    @property
    def identity(self) -> dict[str, Any]:
        """What all parts have in common, each of which asks the sanity checks."""
        return {name: value for name, value in asdict(self).items() if name not in ("wrong", "unwatched")}

    @property
    def units(self) -> int:
        """Of the complete evaluation."""
        return -(-self.prompts // self.unit)

    def rows(self, unit: int) -> range:
        """The prompts of a unit."""
        return range(unit * self.unit, min((unit + 1) * self.unit, self.prompts))


class Folder:
    """Files of an evaluation, to which a shard of it adds its own."""

    def __init__(self, path: Path, shard: Shard = (1, 1)) -> None:
        self.path, self.shard, self.media = path, shard, path / MEDIA
        self.file = path / (RECORDS if shard == (1, 1) else "samples-{}-of-{}.jsonl".format(*shard))

    def header(self) -> Header | None:
        """What is evaluated here; None if nothing is.

        Raises:
            UserError: the file is damaged.
        """
        try:
            return TypeAdapter(Header).validate_json((self.path / HEADER).read_bytes(), strict=True)
        except FileNotFoundError:
            return None
        except ValidationError:
            raise UserError(
                f"{self.path / HEADER} is not of this version of Burnish; evaluate into another folder"
            ) from None

    def begin(self, header: Header) -> list[int]:
        """Make the folder, or go on in it; the units of this shard that are still to be done.

        Raises:
            UserError: something else was evaluated here.
        """
        ours = header.identity
        for name, value in (self.header() or header).identity.items():
            if value != ours[name]:
                raise UserError(
                    f"{self.path} holds another evaluation: its {name} is {value!r:.80}, here it is "
                    f"{ours[name]!r:.80}; give another --output"
                )
        with writing(self.path):
            self.media.mkdir(parents=True, exist_ok=True)
        own = _complete(header, _records(self.file))
        write_atomically(self.file, b"".join(_line(record) for unit in sorted(own) for record in own[unit]))
        write_atomically(self.path / HEADER, json.dumps(asdict(header), indent=1).encode() + b"\n")
        number, count = self.shard
        return [unit for unit in range(number - 1, header.units, count) if unit not in own]

    def append(self, records: Sequence[Record]) -> None:
        """Add the records of a unit; when this returns they are on the disk."""
        with writing(self.path), self.file.open("ab") as file:
            file.write(b"".join(_line(record) for record in records))
            file.flush()
            os.fsync(file.fileno())

    def found(self) -> tuple[Header, list[Record], int]:
        """What is evaluated here, the records of all shards so far, and how many units are missing.

        Raises:
            UserError: nothing is evaluated here.
        """
        header = self.header()
        if header is None:
            raise UserError(f"{self.path} has no {HEADER}: no evaluation of a suite; give the folder of one")
        files = sorted(self.path.glob("samples*.jsonl"))
        units = _complete(header, chain.from_iterable(map(_records, files)))
        return header, [record for unit in sorted(units) for record in units[unit]], header.units - len(units)

    def complete(self) -> tuple[Header, list[Record]]:
        """What is evaluated here, and its records.

        Raises:
            UserError: some are missing.
        """
        header, records, missing = self.found()
        if missing:
            raise UserError(
                f"{self.path} is not complete: {missing} of {header.units} batches are missing; run the same "
                "evaluation again, or its other shards, which go on where they stopped"
            )
        return header, records

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result."""
        write_atomically(self.path / RESULT, json.dumps(result, indent=1).encode() + b"\n")


def _records(file: Path) -> Iterator[Record]:
    """Those of a file, up to the first that was not written to its end."""
    with suppress(ValueError):
        for line in read_file(file).splitlines(keepends=True) if file.exists() else ():
            record = parse_json(line)
            if not line.endswith(b"\n") or not _is_record(record):
                return
            yield record


def _is_record(record: Any) -> bool:
    """Whether a parsed line is a record of an evaluation."""
    return (
        isinstance(record, dict)
        and all(type(record.get(name)) is int for name in ("index", "sample", "unit"))
        and all(isinstance(record.get(name), str) for name in ("key", "task"))
        and isinstance(record.get("values"), dict)
        and all(value is None or type(value) in (int, float) for value in record["values"].values())
    )


def _complete(header: Header, records: Iterable[Record]) -> dict[int, list[Record]]:
    """The units of which every record is there, in order."""
    units: defaultdict[int, dict[tuple[int, int], Record]] = defaultdict(dict)
    for record in records:
        units[record["unit"]][record["index"], record["sample"]] = record
    return {
        unit: [own[place] for place in sorted(own)]
        for unit, own in units.items()
        if own.keys() == {(i, s) for i in header.rows(unit) for s in range(header.n)}
    }


def _line(record: Record) -> bytes:
    return json.dumps(record).encode() + b"\n"


DRAWS = 2000
FEWEST = 5  # prompts of an interval
MISSING = 0.01  # share of missing values, from which on a result is doubted

Aggregation = Literal["prompts", "tasks"]
ByTask = dict[str, dict[str, float]]  # the mean of the samples of a prompt, by task and identity of the prompt


Estimate = dict[str, Any]  # value, prompts, and low and high, between which it may lie; None for what is not known


def estimate(values: ByTask, aggregation: Aggregation, name: str) -> Estimate:
    """A mean with the interval that holds 95 % of the bootstrap: as if other prompts of the same kind had been asked.

    Args:
        values: the mean of the samples of each prompt, by task, within which prompts are drawn again.
        aggregation: mean over all prompts, or the mean of the means of tasks.
        name: of what is estimated; it seeds the draws, so that the same records give the same interval.
    """
    tasks = [np.asarray(list(own.values())) for _, own in sorted(values.items()) if own]
    count = sum(map(len, tasks))
    unknown: Estimate = {"value": None, "low": None, "high": None, "prompts": count}
    if not count:
        return unknown
    weights = [len(own) / count if aggregation == "prompts" else 1 / len(tasks) for own in tasks]
    value = math.fsum(weight * math.fsum(own) / len(own) for weight, own in zip(weights, tasks, strict=True))
    if count < FEWEST or min(map(len, tasks)) < 2:
        return unknown | {"value": value}
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = np.zeros(DRAWS)
    for weight, own in zip(weights, tasks, strict=True):
        drawn += weight * own[generator.integers(0, len(own), (DRAWS, len(own)))].mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {"value": value, "low": float(low), "high": float(high), "prompts": count}


def shown(of: Mapping[str, Any], form: str) -> tuple[str, str]:
    """An estimate in words: the number, and the interval, "" where there is none; ``form`` as in +.3f."""
    if of.get("value") is None:
        return "–", ""
    return f"{of['value']:{form}}", "" if of["low"] is None else f"[{of['low']:{form}}, {of['high']:{form}}]"


def result_of(header: Header, records: Sequence[Record]) -> dict[str, Any]:
    """The result of a complete evaluation, or of a shard."""
    metric = header.primary_metric
    names = sorted({name for record in records for name in record["values"]})
    columns = {name: [record["values"].get(name) for record in records] for name in names}
    reasons, values = list(header.wrong), columns.get(metric, [])
    missing = sum(value is None for value in values)
    if missing > MISSING * len(values):
        reasons.append(f"{missing} of {len(values)} values of {metric} are missing")
    if header.alive is not None and not any(columns.get(header.alive, ())):
        reasons.append(f"{header.alive} is 0 for all {len(values)} samples: the scorer saw nothing in any of them")
    return {
        "suite": header.suite,
        "version": header.version,
        "changed": header.changed,
        "primary_metric": metric,
        "valid": not reasons,
        "why_not": reasons,
        "unwatched": header.unwatched,
        "overall": estimate(by_task(records, metric), header.aggregation, metric),
        "tasks": {
            task: estimate({task: own}, "prompts", metric) for task, own in sorted(by_task(records, metric).items())
        },
        "columns": {name: estimate(by_task(records, name), header.aggregation, name) for name in names},
        "missing": {name: sum(value is None for value in values) for name, values in columns.items()},
        "prompts": len({record["index"] for record in records}),
        "samples": len(records),
        "settings": header.settings,
        "source": header.source,
        "update": header.update,
    }


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


@dataclass(frozen=True)
class Evaluation:
    """A complete evaluation of a suite."""

    header: Header
    result: dict[str, Any]
    means: ByTask  # of the suite's primary metric

    @classmethod
    def read(cls, place: Path) -> Self:
        """That in a folder.

        Raises:
            UserError: there is none, or records are missing.
        """
        header, records = Folder(place).complete()
        return cls(header, result_of(header, records), by_task(records, header.primary_metric))


def changes(one: Evaluation, other: Evaluation) -> dict[str, Estimate]:
    """What changed between two evaluations, paired by prompt: both had the same noise. Overall, and by task."""
    header, before = one.header, one.means
    paired = {
        task: {key: value - before[task][key] for key, value in sorted(own.items()) if key in before[task]}
        for task, own in sorted(other.means.items())
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
