"""Shows that a change of the code moved no number: the same runs before and after it, compared bit by bit.

    python tools/same_numbers.py record build/before --checkout ../the_commit_before
    python tools/same_numbers.py record build/after
    python tools/same_numbers.py compare build/before build/after
    python tools/same_numbers.py resume build/before build/resumed

``record`` trains the golden runs (``tests/golden``), the quickstarts and some runs on Ray for three updates, each in
a process of its own, and leaves out those that the same commit has recorded there. ``compare`` reads metrics.jsonl of
both, all columns but those that depend on the clock. ``resume`` goes on from the checkpoint of update 2 that another
commit wrote, by the config.yaml that it wrote, which names files of that folder, and compares update 3 with its own.
The exit status is 0 where all numbers are equal, and 1 where any differs or a run failed. Numbers are those of one
machine: record both sides on it. No part of Burnish is imported here, so that one version of this tool judges all
commits; each makes its own models.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from warm_start import TIMED_OUT, Starter

sys.path.append(str(Path(__file__).parents[1]))

from tests.golden.runs import HALVES, run_of
from tests.support.tiny_run import UPDATES, write_files

TIME_COLUMNS = ("timing_s/", "timing_per_image_ms/", "timing_per_token_ms/", "perf/", "pipeline/idle_share/")
STEP = "training/global_step"
KEPT = 2  # the checkpoint that ``resume`` goes on from
WHOLE = [f"steps={UPDATES}", f"checkpoint.every={KEPT}", "validation.max_prompts=8"]
QUICKSTARTS = {
    "quickstart": ["quickstart", *WHOLE, "optimizer.schedule_updates=60"],
    "quickstart-flow_grpo": [
        "quickstart", "algorithm=flow_grpo", "algorithm.kl_coef=0.01", *WHOLE, "optimizer.schedule_updates=80",
    ],
    "vlm_quickstart": ["vlm_quickstart", *WHOLE, "optimizer.schedule_updates=60"],
    "vlm_quickstart-ppo": ["vlm_quickstart", "algorithm=ppo", *WHOLE, "critic.warmup_updates=1"],
    "vlm_quickstart-lora": ["vlm_quickstart", *WHOLE, "model.lora.rank=8", "algorithm.kl.coef=0.01"],
}  # fmt: skip
RAY = [
    "runtime=ray", "ray.address=local", "ray.init={num_cpus: 4, include_dashboard: false}", "ray.call_timeout=300",
    "ray.start_timeout=300",
]  # fmt: skip
ON_RAY = {
    "ahead": ["pools.rollout.processes=1", "async_rollout.depth=1"],
    "two-ranks": ["pools.train.processes=2"],
}
RECORDED = "recorded.json"  # written last: how the run went
LOG = "log.txt"
EQUAL = "equal"
SHOWN = 6  # differences of a run
DIRTY = "-dirty"  # of a commit with changes

Metrics = dict[str, Any]


def main() -> int:
    """Do what the command line says."""
    arguments = _parser().parse_args()
    done: int = arguments.do(arguments)
    return done


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    def verb(name: str, function: Callable[[argparse.Namespace], int], *folders: str) -> argparse.ArgumentParser:
        one = verbs.add_parser(name, help=function.__doc__, description=function.__doc__)
        for folder in folders:
            one.add_argument(folder, type=Path)
        one.add_argument("--runs", nargs="+", default=["*"], metavar="NAME", help="names or patterns; default: all")
        one.set_defaults(do=function)
        return one

    for one in (verb("record", record, "folder"), verb("resume", resume, "before", "after")):
        one.add_argument(
            "--cold", action="store_true", help="start every run anew, not as a fork: slower, same numbers"
        )
        one.add_argument("--checkout", type=Path, default=Path(), help="the code that trains (default: this folder)")
        one.add_argument("--jobs", type=int, default=1, help="runs at a time (default: %(default)s)")
        one.add_argument("--timeout", type=float, default=600, help="seconds of one run (default: %(default)s)")
    for name, function in (("compare", compare), ("list", show)):
        verb(name, function, *(("before", "after") if name == "compare" else ()))
    for one in (verbs.choices["compare"], verbs.choices["resume"]):
        one.add_argument("--all", action="store_true", help=f"show every difference, not {SHOWN} of a run")
    return parser


Run = Callable[[Path, "Trainer"], list[str]]  # of a folder of files, which it may add its model to


def runs() -> dict[str, Run]:
    """What makes the arguments of ``burnish train``, by the name of a run."""
    found: dict[str, Run] = {name: partial(_plain, options) for name, options in QUICKSTARTS.items()}
    for half, names in HALVES.items():
        found |= {f"{half}-{name.replace(' ', '-')}": partial(_golden, half, name, []) for name in names}
    for half, name in (("generators", "flow_grpo"), ("language", "grpo")):
        found |= {f"ray-{half}-{how}": partial(_golden, half, name, [*RAY, *more]) for how, more in ON_RAY.items()}
    return found


def _plain(options: list[str], _: Path, __: Trainer) -> list[str]:
    return options


def _golden(half: str, name: str, further: list[str], files: Path, trainer: Trainer) -> list[str]:
    model = HALVES[half][name][0]
    if not (files / model).exists():
        trainer.command(["tiny", model, str(files / model)])
    run = run_of(files, half, name)
    given = [option for option in run.options if not option.startswith("output_dir=")]
    return [str(run.recipe), *given, *further, f"checkpoint.every={KEPT}"]


def show(arguments: argparse.Namespace) -> int:
    """List the runs."""
    print("\n".join(_chosen(arguments.runs, runs())))
    return 0


def record(arguments: argparse.Namespace) -> int:
    """Train every run that this commit has not recorded in FOLDER yet."""
    files = arguments.folder.resolve() / "files"
    files.mkdir(parents=True, exist_ok=True)
    write_files(files)

    def one(name: str, train: Trainer) -> Outcome:
        target = arguments.folder.resolve() / name
        options = runs()[name](files, train)
        if train.has_recorded(target, options):
            return Outcome(name, 0.0, None, "recorded already")
        if target.exists():
            shutil.rmtree(target)
        return train(name, target, options)

    return _all(one, _chosen(arguments.runs, runs()), arguments)


def resume(arguments: argparse.Namespace) -> int:
    """Go on from the checkpoints of BEFORE, in copies of its runs in AFTER, and compare what comes of it."""

    def one(name: str, train: Trainer) -> Outcome:
        source, target = arguments.before / name, arguments.after.resolve() / name
        if target.exists():
            shutil.rmtree(target)
        cut_off(source, target)
        outcome = train(name, target, [str(target / "config.yaml")])
        if outcome.failed is None:
            outcome.found = report(source, target, everything=arguments.all)
            outcome.same = outcome.found == EQUAL
        return outcome

    return _all(one, _chosen(arguments.runs, _recorded(arguments.before)), arguments)


def compare(arguments: argparse.Namespace) -> int:
    """Compare the metrics of all runs of BEFORE with those of AFTER."""
    names = _chosen(arguments.runs, _recorded(arguments.before))
    different = 0
    for name in names:
        found = "not recorded"
        if (arguments.after / name / RECORDED).exists():
            found = report(arguments.before / name, arguments.after / name, everything=arguments.all)
        different += found != EQUAL
        print(f"{name}: {found}", flush=True)
    print(f"{len(names) - different} of {len(names)} runs are equal")
    return int(different > 0 or not names)


@dataclass
class Outcome:
    """How a run went."""

    name: str
    seconds: float
    failed: str | None
    found: str = "done"
    same: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {self.failed or self.found} ({self.seconds:.1f} s)"


def _all(one: Callable[[str, Trainer], Outcome], names: Sequence[str], arguments: argparse.Namespace) -> int:
    """Do something with every run, and tell of each when it is done: the exit status."""
    bad, start = [], time.monotonic()
    with closing(Trainer(arguments)) as trainer, ThreadPoolExecutor(arguments.jobs) as pool:
        for outcome in pool.map(lambda name: one(name, trainer), names):
            print(outcome, flush=True)
            if outcome.failed or not outcome.same:
                bad.append(outcome.name)
    print(f"{len(names) - len(bad)} of {len(names)} runs are as they should be, {time.monotonic() - start:.0f} s")
    if bad:
        print("not so:", *bad)
    return int(bool(bad) or not names)


class Trainer:
    """Runs ``burnish train`` of a checkout, each run in a process of its own."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.checkout: Path = arguments.checkout.resolve()
        self.timeout: float = arguments.timeout
        found = os.environ.get("PYTHONPATH")
        path = str(self.checkout) if not found else f"{self.checkout}{os.pathsep}{found}"
        self.environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.commit = _commit(self.checkout)
        self.cold: bool = arguments.cold
        self._starters: SimpleQueue[Starter] = SimpleQueue()
        for _ in range(arguments.jobs):
            self._starters.put(Starter(self.checkout, self.environment))

    def close(self) -> None:
        """End what starts runs."""
        while not self._starters.empty():
            self._starters.get().close()

    def has_recorded(self, target: Path, options: Sequence[str]) -> bool:
        """Whether this commit, without uncommitted changes, has trained with these options in the folder."""
        if not (target / RECORDED).exists() or self.commit.endswith(DIRTY):
            return False
        found = json.loads((target / RECORDED).read_text())
        return bool(found["commit"] == self.commit and found["command"] == _command(options, target))

    def __call__(self, name: str, target: Path, options: Sequence[str]) -> Outcome:
        """Train in the folder ``target``."""
        command = _command(options, target)
        target.mkdir(parents=True, exist_ok=True)
        log, start = target / LOG, time.monotonic()
        starter = self._starters.get()
        try:
            # a driver of Ray imports it, and what it starts is a fork of nothing
            cold = self.cold or name.startswith("ray-")
            status = self._run(command, log) if cold else starter(command, log, self.timeout)
        finally:
            self._starters.put(starter)
        seconds = time.monotonic() - start
        if status != 0:
            why = f"no end within {self.timeout:g} s" if status == TIMED_OUT else f"exit status {status}"
            return Outcome(name, seconds, f"failed, {why}; see {log}")
        about = {"commit": self.commit, "seconds": round(seconds, 1), "command": command}
        (target / RECORDED).write_text(json.dumps(about, indent=1) + "\n")
        return Outcome(name, seconds, None)

    def command(self, words: Sequence[str]) -> None:
        """Do another command of the checkout."""
        command = [sys.executable, "-m", "burnish", *words]
        subprocess.run(command, cwd=self.checkout, env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def _run(self, command: Sequence[str], log: Path) -> int:
        with log.open("w") as lines:
            try:
                return subprocess.run(
                    [sys.executable, "-m", "burnish", *command], cwd=self.checkout, env=self.environment,
                    stdin=subprocess.DEVNULL, stdout=lines, stderr=subprocess.STDOUT, timeout=self.timeout,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                return TIMED_OUT


def _command(options: Sequence[str], target: Path) -> list[str]:
    return ["train", *options, f"output_dir={target}"]


def cut_off(source: Path, target: Path) -> None:
    """Copy a run as it was when its checkpoint of update ``KEPT`` was its newest."""
    kept = f"{KEPT:08d}"
    target.mkdir(parents=True)
    for name in ("config.yaml", "code.json"):
        if (source / name).exists():
            shutil.copy(source / name, target / name)
    shutil.copytree(source / "checkpoints" / kept, target / "checkpoints" / kept)
    lines = (source / "metrics.jsonl").read_text().splitlines()
    (target / "metrics.jsonl").write_text("".join(line + "\n" for line in lines if json.loads(line)[STEP] <= KEPT))
    for judged in sorted((source / "validation").glob("[0-9]*")):
        if int(judged.name) <= KEPT:
            shutil.copytree(judged, target / "validation" / judged.name)
    if (source / "reference").exists():
        shutil.copytree(source / "reference", target / "reference")


def report(before: Path, after: Path, *, everything: bool) -> str:
    """What differs between two runs, a line each, or that they are equal."""
    found = list(differences(read(before), read(after)))
    if not found:
        return EQUAL
    shown = found if everything else found[:SHOWN]
    more = [] if len(shown) == len(found) else [f"and {len(found) - len(shown)} more"]
    return "\n  ".join(["differs", *shown, *more])


def read(run: Path) -> dict[int, Metrics]:
    """Metrics of every update without those that depend on the clock."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        row[STEP]: {name: value for name, value in row.items() if not name.startswith(TIME_COLUMNS)} for row in rows
    }


def differences(before: dict[int, Metrics], after: dict[int, Metrics]) -> Iterator[str]:
    """Which metrics differ at which update, and by how much; the earliest first."""
    for update in sorted(before.keys() | after.keys()):
        if update not in before or update not in after:
            yield f"update {update} is only {'after' if update not in before else 'before'}"
            continue
        one, two = before[update], after[update]
        for name in [*one, *(name for name in two if name not in one)]:
            if name not in one or name not in two:
                where, value = ("before", one[name]) if name in one else ("after", two[name])
                yield f"update {update}: {name} is only {where} ({value})"
            elif repr(one[name]) != repr(two[name]):  # 0.0 and -0.0 differ, too
                yield f"update {update}: {name} {one[name]!r} -> {two[name]!r}{_apart(one[name], two[name])}"


def _apart(one: float | None, two: float | None) -> str:
    if one is None or two is None or one == two:
        return ""
    return f" (by {abs(one - two):.1e}, {abs(one - two) / max(abs(one), abs(two)):.1e} of it)"


def _chosen(patterns: Sequence[str], names: Sequence[str] | dict[str, Any]) -> list[str]:
    """Names that fit, in order.

    Raises:
        SystemExit: a pattern fits none.
    """
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            sys.exit(f"no run is called {pattern}; `list` names them")
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def _recorded(folder: Path) -> list[str]:
    """Runs of a folder, in the order of the list; what the list no longer has comes last."""
    there = {path.parent.name for path in folder.glob(f"*/{RECORDED}")}
    return [*(name for name in runs() if name in there), *sorted(there - runs().keys())]


def _commit(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "describe", "--always", f"--dirty={DIRTY}", "--abbrev=12"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
