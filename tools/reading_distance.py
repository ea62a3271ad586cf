"""How far a reader walks to follow one step: the files that it enters, each with all its lines.

    python tools/reading_distance.py [--checkout FOLDER] [--files] [--check]

Trains a small run of each recipe for one update and notes which functions the step calls: from the beginning of
``run`` in loop.py to its end, without the hooks. What counts is the train command, the loop, the trainer, the losses,
and the algorithm: the files that define its class and the bases of it, and whatever else of ``algorithms/`` the step
enters. What only reports (``losses/*_metrics.py``) and what is handed to the algorithm (sampling, rewards, advantages,
networks, sharding) is only told of. Counted like this, commit 905c53e had the 7 files and 1,187 lines for flow_grpo,
and the 15 files and 1,922 lines for GRPO, that the budgets were set against.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from fnmatch import fnmatch
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

# by what a reader would call it: patterns of files below burnish/; the first that fits counts
PARTS = {
    "train command": ("commands/train.py",),
    "loop": ("loop.py",),
    "trainer": ("training/trainer.py", "workers/local.py"),
    "algorithm": ("algorithms/*",),
    "losses": ("losses/*",),
}
REPORTING = ("losses/*_metrics.py",)
STEP = ("loop.py", "run")
WITHOUT = ("hooks/*", "__call__")

SMALL = ["steps=1", "data.train_batch_size=2", "rollout.n=4", "validation.max_prompts=2", "scoring.processes=0"]


@dataclass(frozen=True)
class Run:
    """A run that is followed, and how far at most."""

    options: list[str]
    files: int
    lines: int
    bases: int | None = None


RUNS = {
    "flow_grpo": Run(["quickstart", "algorithm=flow_grpo", *SMALL, "validation.reference_guidance=null"], 6, 1050),
    "grpo": Run(["vlm_quickstart", "trainer.mini_batch_size=4", "optimizer.warmup_steps=0", *SMALL], 7, 1350, 3),
}


def main() -> int:
    """Follow each run and print what was found; the exit status is 1 where --check is given and one is too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, default=Path(), help="the code to read (default: this folder)")
    parser.add_argument("--files", action="store_true", help="also name the functions that the step calls in each file")
    parser.add_argument("--check", action="store_true", help="fail where a budget is exceeded")
    arguments = parser.parse_args()
    checkout = arguments.checkout.resolve()
    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    within = True
    for name, run in RUNS.items():
        trace = follow(checkout / "burnish", run.options)
        within &= tell(name, run, trace, functions=arguments.files)
    return int(arguments.check and not within)


@dataclass
class Trace:
    """What a run entered of a package."""

    package: Path
    anywhere: dict[str, set[str]] = field(default_factory=dict)  # functions by file, in the whole run
    step: dict[str, set[str]] = field(default_factory=dict)  # and in the step
    algorithm: type | None = None  # whose loss the step called
    _within: FrameType | None = None
    _hook: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """What sys.setprofile calls."""
        if event == "return":
            if frame is self._within:
                self._within = None
            elif frame is self._hook:
                self._hook = None
        if event != "call" or not frame.f_code.co_flags & CO_OPTIMIZED:  # a module or the body of a class
            return
        code = frame.f_code
        if not code.co_filename.startswith(f"{self.package}{os.sep}"):
            return
        file = Path(code.co_filename).relative_to(self.package).as_posix()
        self.anywhere.setdefault(file, set()).add(code.co_qualname)
        if (file, code.co_qualname) == STEP:
            self._within = frame
        if self._within is None or self._hook is not None:
            return
        if fnmatch(file, WITHOUT[0]) and code.co_name == WITHOUT[1]:
            self._hook = frame
            return
        self.step.setdefault(file, set()).add(code.co_qualname)
        if self.algorithm is None and code.co_name == "loss" and fnmatch(file, "algorithms/*"):
            self.algorithm = type(frame.f_locals["self"])

    def bases(self) -> list[type]:
        """The algorithm's class and those of its bases that are the package's, in the order of a look-up.

        Raises:
            SystemExit: the step called no ``loss`` of a class in ``algorithms/``, which says whose bases these are.
        """
        if self.algorithm is None:
            sys.exit("the step called no method `loss` in algorithms/: say in reading_distance.py what it calls now")
        top = self.package.name
        return [one for one in self.algorithm.__mro__ if one.__module__.partition(".")[0] == top]

    def read(self) -> dict[str, list[str]]:
        """Files that count, by part."""
        defined = {one.__module__.partition(".")[2].replace(".", "/") + ".py" for one in self.bases()}
        commands = {file for file in self.anywhere if part_of(file) == "train command"}
        found: dict[str, list[str]] = {part: [] for part in PARTS}
        for file in sorted(defined | commands | self.step.keys()):
            if (part := part_of(file)) is not None:
                found[part].append(file)
        return found

    def lines(self, files: list[str]) -> int:
        """Lines of files together."""
        return sum(len((self.package / file).read_text(encoding="utf-8").splitlines()) for file in files)


def part_of(file: str) -> str | None:
    """What a reader would call a file; None for what does not count."""
    if any(fnmatch(file, pattern) for pattern in REPORTING):
        return None
    return next((part for part, patterns in PARTS.items() if any(fnmatch(file, one) for one in patterns)), None)


def follow(package: Path, options: list[str]) -> Trace:
    """Train in this process, and note what it enters.

    Raises:
        SystemExit: the run failed.
    """
    from burnish.cli import main as burnish

    trace, said = Trace(package), io.StringIO()
    profile: Callable[[FrameType, str, Any], None] = trace
    with tempfile.TemporaryDirectory() as folder:
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            with redirect_stdout(said), redirect_stderr(said):
                status = burnish(["train", *options, f"output_dir={folder}/run"])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            logging.shutdown()
    if status != 0:
        sys.exit(f"{said.getvalue()}\nburnish train {' '.join(options)} ended with {status}")
    return trace


def tell(name: str, run: Run, trace: Trace, *, functions: bool) -> bool:
    """Print what a reader reads, and whether it is within the budget."""
    found = trace.read()
    files = [file for part in found.values() for file in part]
    bases = trace.bases()[1:]
    counts = [("files", len(files), run.files), ("lines", trace.lines(files), run.lines)]
    if run.bases is not None:
        counts.append(("bases", len(bases), run.bases))
    said = ", ".join(f"{count:,} {what} (at most {most:,})" for what, count, most in counts)
    print(f"{name}: {said}")
    for part, there in found.items():
        for file in there:
            calls = sorted(trace.step.get(file, ()))
            print(f"  {part:14} {file:44} {trace.lines([file]):5}" + (f"  {', '.join(calls)}" if functions else ""))
    print(f"  bases of {trace.bases()[0].__name__}: {', '.join(one.__name__ for one in bases)} ({len(bases)})")
    beside = sorted(trace.step.keys() - set(files))
    print(f"  the step also entered {len(beside)} files with {trace.lines(beside):,} lines, which do not count")
    if functions:
        print(*(f"    {file}" for file in beside), sep="\n")
    return all(count <= most for _, count, most in counts)


if __name__ == "__main__":
    sys.exit(main())
