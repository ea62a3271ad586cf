"""``burnish doctor``: checks whether this machine can run the quickstart."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from burnish.utils import terminal
from burnish.utils.errors import UserError

NEEDED_MEMORY = 2.0  # GB: the quickstart with torch, diffusers and a reward process
NEEDED_DISK = 1.0  # GB: checkpoints and samples of a few runs
SLOW = 10.0  # GFLOP/s of one thread: the quickstart takes ten times as long as documented
COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}

Finding = tuple[str, str, str]  # ok, warn or fail; what was found; what to do


def doctor() -> int:
    """Check that this machine can train.

    Examples:
        burnish doctor      what to fix if the quickstart does not run
    """
    from rich.table import Table
    from rich.text import Text

    table = Table("check", "", "found", "what to do", box=None)
    states = []
    with terminal.progress("Checking this machine") as tell:
        for name, check in CHECKS.items():
            try:
                state, found, advice = check()
            except Exception as error:
                state, found = "fail", f"{type(error).__name__}: {error}"
                advice = "pip install --force-reinstall burnish"
            states.append(state)
            table.add_row(name, Text(state, style=COLOURS[state]), Text(found), Text(advice))
            tell(len(states), len(CHECKS))
    console = terminal.console()
    console.print(table)
    if "fail" in states:
        console.print("\nThe quickstart can't run yet: fix what failed.")
        return 1
    console.print("\nReady: burnish train quickstart. No network is needed.")
    return 0


def check_python() -> Finding:
    """The interpreter."""
    return "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}", ""


def check_dependencies() -> Finding:
    """Versions of the required packages."""
    from packaging.requirements import Requirement

    found, wrong = [], []
    for requirement in map(Requirement, importlib.metadata.requires("burnish") or []):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = "missing"
        found.append(f"{requirement.name} {version}")
        if version == "missing" or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"'{requirement.name}{requirement.specifier}'")
    return ("fail", ", ".join(found), f"pip install {' '.join(wrong)}") if wrong else ("ok", ", ".join(found), "")


def check_device() -> Finding:
    """Where torch computes, and with how many threads."""
    import torch

    if torch.cuda.is_available():
        return "ok", f"cuda: {torch.cuda.get_device_name()}; the CPU with {os.cpu_count()} cores", ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return "ok", f"cpu, {cores} cores; a run uses one thread unless threads=N says otherwise", ""


def check_speed() -> Finding:
    """A timed matrix product on one thread."""
    import torch

    threads, size, seconds = torch.get_num_threads(), 512, float("inf")
    torch.set_num_threads(1)
    a = torch.ones(size, size)
    for _ in range(5):
        start = time.perf_counter()
        a @ a
        seconds = min(seconds, time.perf_counter() - start)
    torch.set_num_threads(threads)
    speed = 2 * size**3 / seconds / 1e9
    found = f"{speed:.0f} GFLOP/s per thread"
    slow = "training will be slow: stop other programs, or use a faster machine"
    return ("warn", found, slow) if speed < SLOW else ("ok", found, "")


def check_memory() -> Finding:
    """Memory that is free now."""
    file = Path("/proc/meminfo")
    if not file.exists():
        return "ok", "unknown on this system", ""
    free = int(re.findall(r"MemAvailable:\s+(\d+)", file.read_text())[0]) * 1024 / 1e9
    advice = f"the quickstart takes about {NEEDED_MEMORY:.0f} GB: stop other programs"
    return ("warn", f"{free:.1f} GB free", advice) if free < NEEDED_MEMORY else ("ok", f"{free:.1f} GB free", "")


def check_folder() -> Finding:
    """Whether runs can be written here."""
    free, here = shutil.disk_usage(".").free / 1e9, Path.cwd()
    if not os.access(here, os.W_OK | os.X_OK):
        return "warn", f"{here} can't be written", "change folder, or set output_dir"
    if free < NEEDED_DISK:
        return "fail", f"{free:.1f} GB free in {here}", "free some, or set output_dir to a disk that has some"
    return "ok", f"{here}, {free:.1f} GB free", ""


def check_quickstart() -> Finding:
    """Whether the quickstart's recipe passes the checks of ``burnish train``."""
    from burnish.config import load
    from burnish.config.disk import check_disk

    try:
        check_disk(load("quickstart"))
    except UserError as error:
        return "fail", str(error), "pip install --force-reinstall burnish, or another folder"
    return "ok", "recipe, model and prompts are there", ""


def check_plugins() -> Finding:
    """Plugins of installed packages."""
    from burnish.registry import ENTRY_POINTS, open_entry_points

    try:
        opened = open_entry_points()
    except UserError as error:
        return "warn", str(error), "only runs that name something of it are refused"
    shown = ", ".join(f"{name} ({what})" for name, what in opened.items())
    return "ok", shown or f"no installed package has any (entry points {ENTRY_POINTS})", ""


def check_reward() -> Finding:
    """Whether the OCR reward reads a rendered number."""
    from burnish.registry import lookup
    from burnish.types.rollout import Prompt

    word = "472"
    verdict = lookup("flow reward", "ocr")().score([_drawn(word)], [Prompt(text=f"the word {word}", answer=word)])[0]
    if verdict.value is None:
        return "fail", f"could not read: {verdict.note}", "pip install --force-reinstall rapidocr onnxruntime"
    if verdict.value < 1:
        return "warn", f"read {verdict.note!r} where {word} is written", "rewards may be too low: report this"
    return "ok", f"reads {word}", ""


def _drawn(word: str) -> Any:
    """A picture of a word, black on white, as a uint8 array [H, W, 3]."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (96, 48), "white")
    ImageDraw.Draw(image).text((48, 24), word, fill="black", font=ImageFont.load_default(40), anchor="mm")
    return np.asarray(image)


CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": check_python,
    "packages": check_dependencies,
    "device": check_device,
    "speed": check_speed,
    "memory": check_memory,
    "folder": check_folder,
    "quickstart": check_quickstart,
    "plugins": check_plugins,
    "OCR reward": check_reward,
}
