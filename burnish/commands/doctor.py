"""``burnish doctor``: checks whether this machine can run the quickstart."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from burnish.utils import terminal
from burnish.utils.errors import UserError

GB = 1e9
NEEDED_MEMORY = 2.0  # GB: the quickstart with torch, diffusers and a reward process
NEEDED_DISK = 1.0  # GB: checkpoints and samples of a few runs
SLOW = 10.0  # GFLOP/s of one thread: the quickstart takes ten times as long as documented


@dataclass(frozen=True)
class Finding:
    """Result of a check, and what to do."""

    state: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def doctor() -> int:
    """Print every check; 0 if the quickstart can run."""
    from rich.table import Table
    from rich.text import Text

    table = Table("check", "", "found", "what to do", box=None)
    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    states = []
    with terminal.progress("Checking this machine") as tell:
        for name, check in CHECKS.items():
            finding = examine(check)
            states.append(finding.state)
            state = Text(finding.state, style=colours[finding.state])
            table.add_row(name, state, Text(finding.found), Text(finding.advice))
            tell(len(states), len(CHECKS))
    console = terminal.console()
    console.print(table)
    if "fail" in states:
        console.print("\nThe quickstart can't run yet: fix what failed.")
        return 1
    console.print("\nReady: burnish train quickstart. No network is needed.")
    return 0


def examine(check: Callable[[], Finding]) -> Finding:
    """Run a check; an exception is a finding, too."""
    try:
        return check()
    except Exception as error:
        return Finding("fail", f"{type(error).__name__}: {error}", "install Burnish again: pip install burnish")


def check_python() -> Finding:
    """The interpreter."""
    return Finding("ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def check_dependencies() -> Finding:
    """Versions of the required packages."""
    from packaging.requirements import Requirement

    found, wrong = [], []
    for text in requirements():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(str(requirement))
            continue
        found.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(str(requirement))
    if wrong:
        return Finding("fail", ", ".join(found), f"pip install {' '.join(repr(one) for one in wrong)}")
    return Finding("ok", ", ".join(found))


def requirements() -> list[str]:
    """Requirements of the installed package, or of the source tree."""
    try:
        return [one for one in importlib.metadata.requires("burnish") or [] if "extra ==" not in one]
    except importlib.metadata.PackageNotFoundError:
        import tomllib

        project = Path(__file__).parents[2] / "pyproject.toml"
        return list(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"])


def check_device() -> Finding:
    """Where torch computes, and with how many threads."""
    import torch

    if torch.cuda.is_available():
        return Finding("ok", f"cuda: {torch.cuda.get_device_name()}; the CPU with {os.cpu_count()} cores")
    return Finding("ok", f"cpu, {len(_cores())} cores; a run uses one thread unless threads=N says otherwise")


def check_speed() -> Finding:
    """A timed matrix product on one thread."""
    import torch

    threads, size = torch.get_num_threads(), 512
    torch.set_num_threads(1)
    try:
        a, best = torch.ones(size, size), float("inf")
        for _ in range(5):
            start = time.perf_counter()
            a @ a
            best = min(best, time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    speed = 2 * size**3 / best / 1e9
    if speed < SLOW:
        return Finding(
            "warn",
            f"{speed:.0f} GFLOP/s per thread",
            "training will be slow: stop other programs, or use a faster machine",
        )
    return Finding("ok", f"{speed:.0f} GFLOP/s per thread")


def check_memory() -> Finding:
    """Memory that is free now."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return Finding("ok", "unknown on this system")
    free = int(re.findall(r"MemAvailable:\s+(\d+)", text)[0]) * 1024 / GB
    if free < NEEDED_MEMORY:
        return Finding(
            "warn",
            f"{free:.1f} GB free",
            f"the quickstart takes about {NEEDED_MEMORY:.0f} GB: stop other programs",
        )
    return Finding("ok", f"{free:.1f} GB free")


def check_disk_space() -> Finding:
    """Space where runs are written."""
    free = shutil.disk_usage(".").free / GB
    if free < NEEDED_DISK:
        return Finding("fail", f"{free:.1f} GB free here", "free some, or set output_dir to a disk that has some")
    return Finding("ok", f"{free:.1f} GB free here")


def check_folder() -> Finding:
    """Whether runs can be written here."""
    if not os.access(".", os.W_OK | os.X_OK):
        return Finding("warn", f"{Path.cwd()} can't be written", "change folder, or set output_dir")
    return Finding("ok", str(Path.cwd()))


def check_quickstart() -> Finding:
    """Whether the quickstart's recipe passes the checks of ``burnish train``."""
    from burnish.config import load
    from burnish.config.disk import check_disk

    try:
        check_disk(load("quickstart"))
    except UserError as error:
        return Finding("fail", str(error), "pip install --force-reinstall burnish, or another folder")
    return Finding("ok", "recipe, model and prompts are there")


def check_plugins() -> Finding:
    """Plugins of installed packages."""
    from burnish.registry import ENTRY_POINTS, open_entry_points

    try:
        opened = open_entry_points()
    except UserError as error:
        return Finding("warn", str(error), "only runs that name something of it are refused")
    shown = ", ".join(f"{name} ({what})" for name, what in opened.items())
    return Finding("ok", shown or f"no installed package has any (entry points {ENTRY_POINTS})")


def check_reward() -> Finding:
    """Whether the OCR reward reads a rendered number."""
    from burnish.registry import lookup
    from burnish.types.rollout import Prompt

    word = "472"
    verdict = lookup("flow reward", "ocr")().score([draw(word)], [Prompt(text=f"the word {word}", answer=word)])[0]
    if verdict.value is None:
        return Finding("fail", f"could not read: {verdict.note}", "pip install --force-reinstall rapidocr onnxruntime")
    if verdict.value < 1:
        return Finding("warn", f"read {verdict.note!r} where {word} is written", "rewards may be too low: report this")
    return Finding("ok", f"reads {word}")


def draw(word: str) -> Any:
    """A picture of a word, black on white, as a uint8 array [H, W, 3]."""
    import matplotlib
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), 40)
    image = Image.new("RGB", (96, 48), "white")
    ImageDraw.Draw(image).text((48, 24), word, fill="black", font=font, anchor="mm")
    return np.asarray(image)


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": check_python,
    "packages": check_dependencies,
    "device": check_device,
    "speed": check_speed,
    "memory": check_memory,
    "disk": check_disk_space,
    "folder": check_folder,
    "quickstart": check_quickstart,
    "plugins": check_plugins,
    "OCR reward": check_reward,
}
