"""The folder of an evaluation: what was evaluated, a record per sample, and what came of it.

Prompts are evaluated in units of fixed size, each sampled and scored as a batch of its own. So every batch has the same
shape however the work is divided: a killed evaluation goes on with the first unit that is not complete, and shards that
did some of the units each are merged to the file that one process would have written.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json, read_object
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
    shard: Annotated[list[Annotated[int, Field(ge=1, le=MOST)]], Field(min_length=2, max_length=2)] | None = (
        None  # number and count, counted from 1
    )
    wrong: list[str]  # sanity checks that were answered wrongly
    unwatched: list[str]  # scorers that no sanity check looks at

    @property
    def identity(self) -> dict[str, Any]:
        """What all parts have in common."""
        # sanity checks are asked by every part
        parts = ("shard", "wrong", "unwatched")
        return {name: value for name, value in asdict(self).items() if name not in parts}

    @property
    def units(self) -> int:
        """Of the complete evaluation."""
        return -(-self.prompts // self.unit)

    def own(self) -> list[int]:
        """The units of this part."""
        number, count = self.shard or (1, 1)
        return list(range(number - 1, self.units, count))

    def rows(self, unit: int) -> range:
        """The prompts of a unit."""
        return range(unit * self.unit, min((unit + 1) * self.unit, self.prompts))


class Folder:
    """Files of an evaluation, or of a part of one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.media = path / MEDIA

    def header(self) -> Header | None:
        """What is evaluated here; None if nothing is.

        Raises:
            UserError: the file is damaged.
        """
        try:
            content = read_object(self.path / HEADER)
        except FileNotFoundError:
            return None
        try:
            header: Header = TypeAdapter(Header).validate_json(json.dumps(content), strict=True)
            return header
        except ValidationError:
            raise UserError(
                f"{self.path / HEADER} is not of this version of Burnish; evaluate into another folder"
            ) from None

    def begin(self, header: Header) -> list[int]:
        """Make the folder, or go on in it; the units that are still to be done.

        Raises:
            UserError: something else was evaluated here.
        """
        there = self.header()
        ours = header.identity | {"shard": header.shard}
        for name, value in (ours if there is None else there.identity | {"shard": there.shard}).items():
            if value != ours[name]:
                raise UserError(
                    f"{self.path} holds another evaluation: its {name} is {value!r:.80}, here it is "
                    f"{ours[name]!r:.80}; give another --output"
                )
        with writing(self.path):
            self.media.mkdir(parents=True, exist_ok=True)
        complete = _complete(header, self.records())
        kept = [_line(record) for unit in sorted(complete) for record in complete[unit]]
        write_atomically(self.path / RECORDS, b"".join(kept))
        write_atomically(self.path / HEADER, json.dumps(asdict(header), indent=1).encode() + b"\n")
        return [unit for unit in header.own() if unit not in complete]

    def append(self, records: Sequence[Record]) -> None:
        """Add the records of a unit; when this returns they are on the disk."""
        with writing(self.path), (self.path / RECORDS).open("ab") as file:
            file.write(b"".join(_line(record) for record in records))
            file.flush()
            os.fsync(file.fileno())

    def records(self) -> Iterator[Record]:
        """All records, up to the first that was not written to its end."""
        file = self.path / RECORDS
        if not file.exists():
            return
        for line in read_file(file).splitlines(keepends=True):
            try:
                record = parse_json(line) if line.endswith(b"\n") else None
            except ValueError:
                record = None
            if not isinstance(record, dict) or not _is_record(record):
                return
            yield record

    def complete(self) -> tuple[Header, list[Record]]:
        """What an evaluation, or a part of one, is of, and its records, if it is complete.

        Raises:
            UserError: it is not.
        """
        header = self.header()
        if header is None:
            raise UserError(f"{self.path} has no {HEADER}: no evaluation of a suite; give the folder of one")
        units = _complete(header, self.records())
        if lacking := [unit for unit in header.own() if unit not in units]:
            raise UserError(
                f"{self.path} is not complete: {len(lacking)} of {len(header.own())} batches are missing; run the "
                "same evaluation again, which goes on where it stopped"
            )
        return header, [record for unit in sorted(units) for record in units[unit]]

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result."""
        write_atomically(self.path / RESULT, json.dumps(result, indent=1).encode() + b"\n")


def merged(target: Folder, parts: Sequence[Folder]) -> tuple[Header, list[Record]]:
    """Put the parts of an evaluation together in another folder.

    Raises:
        UserError: they are not parts of one evaluation, one is not complete, or one is missing.
    """
    headers, by_place = [], dict[tuple[int, int], Record]()
    for part in parts:
        header, records = part.complete()
        headers.append(header)
        for name, value in headers[0].identity.items():
            if value != header.identity[name]:
                raise UserError(
                    f"{parts[0].path} and {part.path} are no parts of one evaluation: {name} is "
                    f"{value!r:.80} and {header.identity[name]!r:.80}"
                )
        by_place |= {(record["index"], record["sample"]): record for record in records}
    first = headers[0]
    doubts = dict.fromkeys(one for header in headers for one in header.wrong)
    whole = Header(**first.identity, shard=None, wrong=list(doubts), unwatched=first.unwatched)
    if len(by_place) != whole.prompts * whole.n:
        shards = ", ".join("/".join(map(str, header.shard or (1, 1))) for header in headers)
        raise UserError(
            f"{len(by_place)} of {whole.prompts * whole.n} samples are there (shards {shards}); give the folders of all"
        )
    if target.header() is not None:
        raise UserError(f"{target.path} holds an evaluation; give another --output")
    target.begin(whole)
    records = [by_place[place] for place in sorted(by_place)]
    target.append(records)
    for record in records:
        name = str(record.get("file"))
        for source in (part.media / name for part in parts):
            if Path(name).name == name and source.is_file() and not source.is_symlink():
                write_atomically(target.media / name, source.read_bytes())
    return whole, records


def _is_record(record: Record) -> bool:
    """Whether a parsed line is a record of an evaluation."""
    return (
        all(type(record.get(name)) is int for name in ("index", "sample", "unit"))
        and all(isinstance(record.get(name), str) for name in ("key", "task"))
        and isinstance(record.get("values"), dict)
        and all(value is None or type(value) in (int, float) for value in record["values"].values())
    )


def _complete(header: Header, records: Iterator[Record]) -> dict[int, list[Record]]:
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
