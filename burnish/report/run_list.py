"""Runs below a folder, and how each of them stands. The folder may come from somebody else."""

from __future__ import annotations

import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from burnish.config.run_folder import LARGEST_METRICS, LONGEST_ROW, STEP, RunFolder, is_row
from burnish.evaluation.records import HEADER
from burnish.report.points import Points, series
from burnish.report.reading import is_number, read_configuration
from burnish.report.samples import Sample, first_sample
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.paths import CLAIM, CONFIG, METRICS
from burnish.utils.reading import read_long

LABEL = 200  # characters of a prompt and of a response in the table
DEEPEST = 4  # folders below the one that is looked through
MOST_RUNS, MOST_FOLDERS = 1000, 20_000
QUIET = 300.0  # seconds without a line after which a run of another machine counts as stopped
WITHIN = {
    "validation", "reference", "checkpoints", "samples", "validation_samples", "tensorboard", "profiles", "earlier",
    "alarms", "trackers",
}  # fmt: skip
TIME = re.compile(rb'"timing_s/(?:step|testing)": ([0-9.eE+-]+)')


def find_runs(root: Path) -> dict[str, Path]:
    """Folders of runs by their path from ``root``, which may be one itself; links are not followed."""
    return find(root)[0]


def find(root: Path) -> tuple[dict[str, Path], list[Path]]:
    """Folders of runs, and those of evaluations beside them."""
    found: dict[str, Path] = {}
    evaluated: list[Path] = []
    waiting, seen = [(root, 0)], 0
    while waiting and len(found) < MOST_RUNS and seen < MOST_FOLDERS:
        folder, depth = waiting.pop(0)
        seen += 1
        if is_run(folder):
            found[folder.relative_to(root).as_posix()] = folder
            continue
        if (folder / HEADER).is_file():
            evaluated.append(folder)
            continue
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        waiting += [
            (Path(entry.path), depth + 1)
            for entry in entries
            if depth < DEEPEST and entry.name not in WITHIN and not entry.name.startswith(".") and _is_folder(entry)
        ]
    return found, evaluated


def is_run(folder: Path) -> bool:
    """Whether a folder has the files of a run, and none of them is a link to elsewhere."""
    files = [folder / CONFIG, folder / METRICS]
    return any(file.is_file() for file in files) and not any(file.is_symlink() for file in files)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def run_row(name: str, path: Path) -> dict[str, Any]:
    """What the table of runs says of one."""
    folder = RunFolder(path)
    config = configuration(folder)
    seen = _told(str(folder.metrics), *stamp(folder.metrics))
    planned = config.get("steps") or seen["updates"]
    rewards = [one for one in seen["rewards"] if one[1] is not None]
    best = max(rewards, key=lambda one: (one[1], -one[0]), default=None)
    return {
        "id": name, "name": path.resolve().name if name == "." else name,
        "state": state(folder, seen["updates"], planned), "updates": seen["updates"], "steps": planned,
        "algorithm": (config.get("algorithm") or {}).get("name", ""), "seed": _number_of(config.get("seed")),
        "model": (config.get("model") or {}).get("path", ""), "task": config.get("task", ""),
        "best": best and {"update": best[0], "reward": best[1]}, "last": rewards[-1][1] if rewards else None,
        "validation": series("validation", "validation", rewards, most=40), "seconds": seen["seconds"],
        "changed": max((stamp(file)[0] for file in (folder.metrics, folder.config)), default=0) / 1e9,
        "error": config.get("error", ""), "lr": _number_of((config.get("optimizer") or {}).get("lr")),
        "thumbnail": thumbnail(folder),
    }  # fmt: skip


def thumbnail(folder: RunFolder) -> dict[str, Any] | None:
    """The first sample of the newest validation: its file, or the response with the picture of its prompt."""
    newest = max(folder.validations(), default=None)
    if newest is None:
        return None
    sample = _first(str(folder.validation(newest)), *stamp(folder.validation(newest) / "samples.jsonl"))
    if sample is None:
        return None
    file = sample.picture if sample.response is None else next(iter(sample.shown), None)
    return {
        "update": newest, "prompt": sample.prompt[:LABEL], "text": sample.response and sample.response[:LABEL],
        "file": file.relative_to(folder.path).as_posix() if file is not None and file.is_file() else None,
    }  # fmt: skip


@lru_cache(maxsize=MOST_RUNS)
def _first(validation: str, changed: int, size: int) -> Sample | None:
    return first_sample(Path(validation))


def _number_of(value: Any) -> Any:
    return value if is_number(value) else None


def configuration(folder: RunFolder) -> dict[str, Any]:
    """A run's options; only {"error": ...} where they can't be read."""
    return _configuration(str(folder.config), *stamp(folder.config))


@lru_cache(maxsize=MOST_RUNS)
def _configuration(file: str, changed: int, size: int) -> dict[str, Any]:
    try:
        return read_configuration(Path(file))
    except UserError as error:
        return {"error": str(error)}


def stamp(file: Path) -> tuple[int, int]:
    """When a file changed, in nanoseconds, and its bytes; zeros where there is none."""
    try:
        about = file.stat()
    except OSError:
        return 0, 0
    return about.st_mtime_ns, about.st_size


@lru_cache(maxsize=MOST_RUNS)
def _told(file: str, changed: int, size: int) -> dict[str, Any]:
    """Validation rewards, updates and seconds; other lines are not parsed, so that many runs are listed at once."""
    rewards: Points = []
    seconds, last = 0.0, deque[bytes](maxlen=3)  # the newest line may be half written
    steps = [0]

    def take(line: bytes) -> None:
        try:
            row = parse_json(line)
        except ValueError:
            return
        if not is_row(row) or type(row.get(STEP)) is not int:
            return
        steps.append(row[STEP])
        found = [v for k, v in row.items() if k.startswith("val-core/") and "/reward/mean@" in k and v is not None]
        if found:
            rewards.append((row[STEP], sum(found) / len(found)))

    with suppress(UserError):  # it is no file
        for _, line in read_long(Path(file), LONGEST_ROW, LARGEST_METRICS) if size else ():
            seconds += sum(map(_number, TIME.findall(line)))
            if b'"val-core/' in line:
                take(line)
            else:
                last.append(line)
    for line in last:
        take(line)
    return {"rewards": rewards, "updates": max(steps), "seconds": seconds}


def _number(text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if value < 1e9 else 0.0


def state(folder: RunFolder, updates: int, planned: int, clock: Callable[[], float] = time.time) -> str:
    """``running``, ``finished`` or ``stopped``; the lock is only looked at, since a run that starts must get it."""
    claim = folder.path / CLAIM
    try:
        text = claim.read_text(encoding="utf-8")[:200] if claim.is_file() and not claim.is_symlink() else ""
    except (OSError, ValueError):
        text = ""
    known = re.match(r"process (\d+) on (\S+)", text)
    done = "finished" if updates and updates >= planned else "stopped"
    if known is None:
        return done
    if known.group(2) != socket.gethostname():
        quiet = clock() - stamp(folder.metrics)[0] / 1e9
        return "running" if done == "stopped" and quiet < QUIET else done
    return "running" if _alive(int(known.group(1))) and _locked(claim) is not False else done


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _locked(file: Path) -> bool | None:
    """Whether a process holds a file's lock, as Linux tells; None elsewhere."""
    try:
        held = Path("/proc/locks").read_text(encoding="utf-8")
        inode = file.stat().st_ino
    except OSError:
        return None
    return any(f":{inode} " in line for line in held.splitlines() if "FLOCK" in line)
