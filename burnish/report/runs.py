"""Runs below a folder, how each of them stands, and several beside each other. Folders may come from somebody else."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model

from burnish.config.run_folder import STEP, TIME, RunFolder, read_row
from burnish.config.yaml_text import parse
from burnish.report.samples import cut, each_sample, newest, read_prompts, relative, series
from burnish.report.statistics import REWARD
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.json_text import flattened
from burnish.utils.paths import CLAIM, CONFIG, FOLDERS, METRICS
from burnish.utils.reading import read_text
from burnish.utils.records import cached, is_number, leads_out, stamp

LABEL = 200  # characters of a prompt and of a response in the table
DEEPEST = 4  # folders below the one that is looked through
MOST_RUNS = 1000  # of which something is kept in memory
QUIET = 300.0  # seconds without a line after which a run whose lock can't be seen counts as stopped
REWARDS = re.compile(rb'"val-core/[^\n]*')  # in a line to its end
LAST = 1 << 16  # bytes in which the last lines are
WEIGHT = re.compile(r"rewards\.[^.]+\.weight=(?!-?0(\.0*)?$).*")
UNSET = {"null", "{}", "[]"}
LONGEST = 300  # characters of an option's value
NOTES, MOST_NOTED = "notes.md", 2000  # what a person wrote about a run, and characters of it that are shown
_MODEL: Any = create_model
_REWARD = _MODEL("Reward", weight=(float | None, None), weight_by=(dict[str, Any] | None, None))
_RUN = _MODEL(  # options that a report reads, with their types
    "Run", task=(str | None, None), steps=(int | None, None), output_dir=(str | None, None),
    model=(_MODEL("Model", path=(str, ...), lora=(_MODEL("Lora", rank=(int, ...)) | None, None)), ...),
    data=(_MODEL("Data", train_batch_size=(int, ...)), ...), algorithm=(_MODEL("Algorithm", name=(str, ...)), ...),
    rollout=(_MODEL("Rollout", n=(int, ...), guidance_scale=(float | None, None)), ...),
    rewards=(dict[str, _REWARD | None] | None, None),  # type: ignore[valid-type]
    checkpoint=(dict[str, Any] | None, None),
    optimizer=(_MODEL("Optimizer", lr=(float, ...)) | None, None),
)  # fmt: skip


def read_configuration(file: Path) -> dict[str, Any]:
    """A run's configuration as plain data, {} if there is none; algorithms and rewards are not looked up.

    Raises:
        UserError: it was not written by a run.
    """
    if not file.is_file():
        return {}
    try:
        content: dict[str, Any] = parse(read_text(file))
        _RUN.model_validate(content, strict=True)
        return content
    except ConfigError as error:
        why = str(error)
    except ValidationError as error:
        why = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:1])
    raise UserError(f"{file} is not the configuration of a run: {why}; restore it")


@cached(stamp, MOST_RUNS)
def configuration(file: Path) -> dict[str, Any]:
    """A run's options; only {"error": ...} where they can't be read."""
    try:
        return read_configuration(file)
    except UserError as error:
        return {"error": str(error)}


def find_runs(root: Path) -> dict[str, Path]:
    """Folders of runs by their path from ``root``, which may be one itself."""
    runs: dict[str, Path] = {}
    for place, below, _ in os.walk(root):  # links are not followed
        folder = Path(place)
        files = [folder / CONFIG, folder / METRICS]
        name = folder.relative_to(root)
        below[:] = sorted(one for one in below if one not in FOLDERS and not one.startswith("."))
        if any(file.is_file() for file in files) and not any(file.is_symlink() for file in files):
            runs[name.as_posix()] = folder
            below.clear()
        elif len(name.parts) >= DEEPEST:
            below.clear()
    return runs


def run_rows(runs: Mapping[str, Path]) -> list[dict[str, Any]]:
    """What the table of runs says of each; those that run are first, then those that changed last."""
    locked = locked_files()
    rows = [run_row(name, path, locked) for name, path in runs.items()]
    return sorted(rows, key=lambda row: (row["state"] != "running", -row["changed"]))


def run_row(name: str, path: Path, locked: frozenset[str] | None) -> dict[str, Any]:
    """What the table of runs says of one."""
    folder = RunFolder(path)
    config, progress = configuration(folder.config), _read_progress(folder.metrics)
    updates, rewards = progress["updates"], progress["rewards"]
    planned = config.get("steps") or updates
    best = max(rewards, key=lambda one: (one[1], -one[0]), default=None)
    seed, rate = config.get("seed"), (config.get("optimizer") or {}).get("lr")
    return {
        "id": name, "name": path.resolve().name if name == "." else name,
        "state": state(folder, updates, planned, locked), "updates": updates, "steps": planned,
        "algorithm": (config.get("algorithm") or {}).get("name", ""), "seed": seed if is_number(seed) else None,
        "model": (config.get("model") or {}).get("path", ""), "task": config.get("task", ""),
        "best": best and {"update": best[0], "reward": best[1]}, "last": rewards[-1][1] if rewards else None,
        "validation": series("validation", "validation", rewards, most=40), "seconds": progress["seconds"],
        "changed": max(stamp(folder.metrics)[0], stamp(folder.config)[0]) / 1e9,
        "error": config.get("error", ""), "lr": rate if is_number(rate) else None, "thumbnail": _thumbnail(folder),
        "notes": _notes(path / NOTES),
    }  # fmt: skip


@cached(stamp, MOST_RUNS)
def _notes(file: Path) -> str:
    """What somebody wrote into the folder of a run, with tags such as #baseline; no command writes this file."""
    readable = file.is_file() and not leads_out(file, file.parent)
    return cut(file.read_text(encoding="utf-8", errors="replace").strip(), MOST_NOTED) or "" if readable else ""


def _thumbnail(folder: RunFolder) -> dict[str, Any] | None:
    """The first sample of the newest validation: its file, or the response with the image of its prompt."""
    newest = max(folder.validations(), default=0)
    sample = next(each_sample(folder.validation(newest)), None)
    if sample is None:
        return None
    files = [sample.image] if sample.response is None else sample.shown
    return {
        "update": newest, "prompt": sample.prompt[:LABEL], "text": sample.response and sample.response[:LABEL],
        "file": relative(files[0], folder) if files else None,
    }  # fmt: skip


@cached(stamp, MOST_RUNS)
def _read_progress(file: Path) -> dict[str, Any]:
    """Validation rewards, updates and seconds; other lines are not parsed, so that many runs are listed at once."""
    content = file.read_bytes() if file.is_file() else b""
    validated = [
        content[(start := content.rfind(b"\n", 0, one.start()) + 1) : content.find(b",", start) + 1] + one[0]
        for one in REWARDS.finditer(content)
    ]  # of a line its number, which is first, and what follows
    rewards: dict[int, float | None] = {}
    updates, seconds = 0, 0.0
    for line in [*validated, *content[-LAST:].split(b"\n")[-3:]]:  # the last may be half written
        if (row := read_row(line)) is not None:
            updates = max(updates, row[STEP])
            seconds = row.get(TIME) or seconds
            if (reward := REWARD.of(row)) is not None:
                rewards[row[STEP]] = reward
    return {"rewards": list(rewards.items()), "updates": updates, "seconds": seconds}


def locked_files() -> frozenset[str] | None:
    """Inodes of the files that processes of this machine lock; None where it can't be known."""
    try:
        return frozenset(re.findall(r"FLOCK.*:(\d+) ", Path("/proc/locks").read_text(encoding="utf-8")))
    except OSError:
        return None


def state(folder: RunFolder, updates: int, planned: int, locked: frozenset[str] | None) -> str:
    """``running``, ``finished`` or ``stopped``; the lock is only looked at, since a run that starts must get it."""
    claim, text = folder.path / CLAIM, ""
    with suppress(OSError, ValueError):
        text = claim.read_text(encoding="utf-8")[:200] if claim.is_file() and not claim.is_symlink() else ""
    owner = re.match(r"process \d+ on (\S+)", text)
    done = "finished" if updates and updates >= planned else "stopped"
    if owner is None:
        return done
    if owner[1] == socket.gethostname() and locked is not None:
        return "running" if str(claim.stat().st_ino) in locked else done
    quiet = time.time() - stamp(folder.metrics)[0] / 1e9
    return "running" if done == "stopped" and quiet < QUIET else done


# several runs beside each other


def options_of(folder: RunFolder) -> dict[str, str]:
    """A run's options as JSON by their dotted names."""
    config = configuration(folder.config)
    return {name: json.dumps(value, ensure_ascii=False, default=str) for name, value in flattened(config)}


def by_option(runs: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, list[str | None] | str | None]]:
    """Each option with its values by run, None where a run lacks it; a single value where all are alike."""
    runs = list(runs)
    for name in dict.fromkeys(name for run in runs for name in run):
        values = [run.get(name) for run in runs]
        yield name, [cut(value, LONGEST) for value in values] if len(set(values)) > 1 else cut(values[0], LONGEST)


def differences(options: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """Options that are not the same in all runs, with their values in order; None where a run lacks one.

    Of what only some have, such as a reward, options that are unset are left out.
    """
    return [
        {"option": name, "values": values} for name, values in by_option(options.values())
        if isinstance(values, list) and not (None in values and set(values) - {None} <= UNSET)
    ]  # fmt: skip


def other_rewards(options: Mapping[str, Mapping[str, str]]) -> str:
    """A warning where runs were trained on different rewards; "" where these are the same."""
    rewards = {
        name: " + ".join(sorted(key.split(".")[1] for key, value in run.items() if WEIGHT.fullmatch(f"{key}={value}")))
        for name, run in options.items()
    }
    if len(set(rewards.values())) < 2:
        return ""
    text = "; ".join(f"{cut(name, LONGEST)}: {cut(own, LONGEST) or 'none'}" for name, own in rewards.items())
    return f"These runs were trained on different rewards, which can't be compared: {text}."


def shared_prompts(folders: Sequence[RunFolder], most: int = 1000) -> list[dict[str, Any]]:
    """Validation prompts that all runs share, by their place in each."""
    first, *others = [newest(folder, read_prompts) for folder in folders]
    return [
        {"index": index, "prompt": cut(prompt["prompt"], 2 * LABEL)} for index, prompt in sorted(first.items())
        if all(other.get(index, {}).get("prompt") == prompt["prompt"] for other in others)
    ][:most]  # fmt: skip
