"""Evaluations of suites that are of a run: those of its validations, and those of burnish eval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from burnish.config.run_folder import RunFolder
from burnish.evaluation.records import HEADER, RECORDS, RESULT, Folder, Header
from burnish.evaluation.results import ByTask, by_task, result_of
from burnish.report.points import Points, series
from burnish.report.reading import is_number, leads_out
from burnish.report.run_list import stamp
from burnish.report.validated import MOST_SCORED, chosen
from burnish.utils.errors import UserError
from burnish.utils.paths import SUITES

MOST = 24  # evaluations of burnish eval that are read for a page


@dataclass(frozen=True)
class Side:
    """A complete evaluation of a suite."""

    update: int
    place: Path
    origin: str  # the folder of burnish eval; "" for a validation's
    header: Header
    result: dict[str, Any]
    means: ByTask  # of the suite's number

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal where two can be compared: the same prompts, asked and scored the same way."""
        one = self.header
        return one.suite, one.version, one.number, one.overall, one.n, one.prompts_digest, one.digest


def evaluations(folder: RunFolder, others: Iterable[Path] = ()) -> list[list[Side]]:
    """What can be compared together, by update. Of validations it is the first and the last one.

    Args:
        folder: of the run.
        others: folders outside of it that may be evaluations of it.
    """
    found: defaultdict[tuple[Any, ...], list[Side]] = defaultdict(list)
    inside = [place.parent for pattern in ("*", "*/*") for place in sorted(folder.path.glob(f"{pattern}/{HEADER}"))]
    places = [(place, folder.path) for place in inside] + [(place, place) for place in others]
    asked = [(place, limit) for place, limit in places if _is_of(_header(place, limit), folder.path)]
    for side in [*_validated(folder), *(_side(*one) for one in asked[:MOST])]:
        if side is not None:
            found[side.key].append(side)
    return [sorted(some, key=lambda one: (one.update, one.origin)) for _, some in sorted(found.items())]


def curve(folder: RunFolder, sides: Sequence[Side]) -> dict[str, Any] | None:
    """The suite's number over the updates, with intervals; None where there are fewer than two."""
    suite = sides[0].header.suite
    values = {side.update: side.result["overall"] for side in sides}
    for update in chosen(_updates(folder, suite), MOST_SCORED) if any(not side.origin for side in sides) else ():
        place = folder.validation(update) / SUITES / suite
        if update not in values and (one := _overall(place, folder.path, *stamp(place / RESULT))) is not None:
            values[update] = one
    points: Points = [(update, one["value"]) for update, one in sorted(values.items())]
    ends = [(one["low"], one["high"]) if one["low"] is not None else None for _, one in sorted(values.items())]
    return series("validation", "validation", points, ends) if len(points) > 1 else None


def stamps(places: Iterable[Path]) -> str:
    """Changes whenever one of the evaluations has."""
    return "-".join(f"{changed:x}.{size:x}" for changed, size in (stamp(place / RESULT) for place in places))


def _updates(folder: RunFolder, suite: str) -> list[int]:
    places = (folder.path / "validation").glob(f"[0-9]*/{SUITES}/{suite}")
    return sorted(int(path.parents[1].name) for path in places if path.parents[1].name.isdecimal() and path.is_dir())


def _validated(folder: RunFolder) -> list[Side]:
    """The first and the last complete evaluation of each suite by validations."""
    places = (folder.path / "validation").glob(f"[0-9]*/{SUITES}/*")
    names = sorted({path.name for path in places if path.parents[1].name.isdecimal()})
    found = []
    for name in names:
        updates = _updates(folder, name)
        ends: dict[int, Side] = {}
        for way in (updates, updates[::-1]):
            read = (_of(folder.validation(update) / SUITES / name, folder.path, update) for update in way)
            if (side := next(filter(None, read), None)) is not None:
                ends[side.update] = side
        found += list(ends.values())
    return found


def _of(place: Path, inside: Path, update: int) -> Side | None:
    return None if (read := _read(place, inside)) is None else Side(update, place, "", *read)


def _side(place: Path, inside: Path) -> Side | None:
    """An evaluation of burnish eval, which knows after how many updates it was made."""
    read = _read(place, inside)
    return None if read is None or read[0].update is None else Side(read[0].update, place, place.name, *read)


def _read(place: Path, inside: Path) -> tuple[Header, dict[str, Any], ByTask] | None:
    """What is there, where it is complete; None for others, and for what was put there by somebody else."""
    if any(leads_out(place / file, inside) for file in (HEADER, RECORDS)):
        return None
    return _parsed(place, *stamp(place / HEADER), *stamp(place / RECORDS))


@lru_cache(maxsize=256)
def _parsed(place: Path, *changed: int) -> tuple[Header, dict[str, Any], ByTask] | None:
    opened = Folder(place)
    try:
        records, header = opened.complete(), opened.header()
        if header is None:
            return None
        return header, result_of(header, records), by_task(records, header.number)
    except (UserError, TypeError, ValueError, ArithmeticError):
        return None


@lru_cache(maxsize=1024)
def _overall(place: Path, inside: Path, *changed: int) -> Mapping[str, Any] | None:
    """The number of a validation between, as it was written beside its records."""
    if leads_out(place / RESULT, inside):
        return None
    try:
        one = (Folder(place).result() or {}).get("overall")
    except UserError:
        return None
    if not isinstance(one, dict) or not is_number(one.get("value")):
        return None
    known = is_number(one.get("low")) and is_number(one.get("high"))
    return one if known else {"value": one["value"], "low": None, "high": None}


def _header(place: Path, inside: Path) -> Header | None:
    return None if leads_out(place / HEADER, inside) else _parsed_header(place, *stamp(place / HEADER))


@lru_cache(maxsize=1024)
def _parsed_header(place: Path, *changed: int) -> Header | None:
    try:
        return Folder(place).header()
    except (UserError, TypeError, ValueError):
        return None


def _is_of(header: Header | None, run: Path) -> bool:
    """Whether what was evaluated, and not in parts, is a run or one of its checkpoints."""
    if header is None or header.update is None or header.shard is not None:
        return False
    try:
        return Path(header.source).resolve().is_relative_to(run.resolve())
    except (OSError, RuntimeError, ValueError):  # no name of a file
        return False
