"""What writes the pages about classes of a library: each is measured in a process of its own, and kept as a row.

Rows are kept in --work, so that a page can be written again after some of them have been measured anew.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

SHOWN = 300  # characters of an error


@dataclass(frozen=True, kw_only=True)
class ClassTable:
    """Tiny models of all classes, and the page about them."""

    about: str  # what the command line says
    names: Sequence[str]  # of the tiny models
    describe: Callable[[str], Any]  # the tiny model of a name, or of a class
    row: type[Any]  # a dataclass with name, good and faults
    measure: Callable[[str, Path], Any]  # a row, in an empty folder
    failed: Callable[[str, str], Any]  # a row of a model whose measurement ended with an error
    told: Callable[[Any], str]  # a row as progress
    page: Callable[[Sequence[Any]], str]
    trained: Callable[[Sequence[Any]], int]  # classes that can be trained
    file: str  # in docs/
    work: str

    def main(self) -> int:
        """Measure what the command line says, and write the page."""
        parser = argparse.ArgumentParser(description=self.about, formatter_class=argparse.RawDescriptionHelpFormatter)
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--only", nargs="+", metavar="NAME", help="measure these alone, and write the page of all")
        which.add_argument("--check", nargs="+", metavar="NAME", help="measure these alone, and write nothing")
        parser.add_argument("--jobs", type=int, default=1, help="models at a time (default: %(default)s)")
        parser.add_argument("--work", type=Path, default=Path(self.work), help="rows (default: %(default)s)")
        parser.add_argument(
            "--page", type=Path, default=Path(__file__).parents[1] / "docs" / self.file,
            help=f"the page that is written (default: docs/{self.file})",
        )  # fmt: skip
        given = parser.parse_args()
        chosen = [self.describe(name).name for name in given.check or given.only or self.names]
        rows = self._measured(chosen, given.jobs)
        if given.check:
            return int(any([not row.good for row in rows]))  # noqa: C419 - all are measured, also after one with a fault
        given.work.mkdir(parents=True, exist_ok=True)
        for row in rows:
            (given.work / f"{row.name}.json").write_text(json.dumps(asdict(row)))
        kept = [file for name in self.names if (file := given.work / f"{name}.json").is_file()]
        known = [self.row(**json.loads(file.read_text())) for file in kept]
        given.page.write_text(self.page(known))
        print(f"{given.page}: {self.trained(known)} classes that can be trained")
        return int(any(row.faults for row in known))

    def _measured(self, names: Sequence[str], jobs: int) -> Iterator[Any]:
        """Rows as they are finished, each told in a line."""
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            pending = [pool.submit(_measured, name, self.measure, self.failed) for name in names]
            for number, future in enumerate(as_completed(pending), start=1):
                row, seconds = future.result()
                faults = "".join(f"\n    FAULT {fault}" for fault in row.faults)
                print(f"[{number}/{len(names)}] {self.told(row)}{faults} ({seconds:.0f} s)", flush=True)
                yield row


def _measured(name: str, measure: Callable[[str, Path], Any], failed: Callable[[str, str], Any]) -> tuple[Any, float]:
    """A row and the seconds that it took, in a process of its own; what goes wrong there is a fault."""
    import torch

    logging.getLogger("burnish").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            row = measure(name, Path(folder))
        except Exception as error:  # of a class that is not ours: the others are still measured
            traceback.print_exc(limit=-6)
            row = failed(name, " ".join(f"{type(error).__name__}: {error}".split())[:SHOWN])
    return row, time.monotonic() - began


def figure(value: float) -> str:
    """A difference in a cell: one digit is enough."""
    return "" if math.isnan(value) else "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-")


def lines_of(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, whose first row is its head."""
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *others))
