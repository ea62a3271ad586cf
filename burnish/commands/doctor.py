"""``burnish doctor``: checks whether this machine can run the quickstart."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from burnish.utils import terminal
from burnish.utils.errors import UserError

NEEDED_DISK = 1.0  # GB: checkpoints and samples of a few runs
SHARED = Path("/dev/shm")
NEEDED_SHARED = 1.0  # GB: containers have .06 unless they are given more
COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}
AGAIN = "pip install --force-reinstall burnish"

Finding = tuple[str, str, str]  # ok, warn or fail; what was found; what to do


def doctor() -> int:
    """Check that this machine can train.

    Examples:
        burnish doctor      what to fix if the quickstart does not run
    """
    from rich.text import Text

    rows: list[tuple[str, Text, str, str]] = []
    with terminal.progress("Checking this machine") as tell:
        for name, check in CHECKS.items():
            try:
                state, found, advice = check()
            except UserError as error:
                state, found, advice = "fail", str(error), f"{AGAIN}, or another folder"
            except Exception as error:
                state, found, advice = "fail", f"{type(error).__name__}: {error}", AGAIN
            rows.append((name, Text(state, style=COLOURS[state]), found, advice))
            tell(len(rows), len(CHECKS))
    terminal.table(("check", "", "found", "what to do"), rows)
    if any(state.plain == "fail" for _, state, *_ in rows):
        terminal.say("\nThe quickstart can't run yet: fix what failed.")
        return 1
    terminal.say("\nReady: burnish train quickstart. No network is needed.")
    return 0


def check_packages() -> Finding:
    """Versions of the required packages."""
    from packaging.requirements import Requirement

    found, wrong = [], []
    for requirement in map(Requirement, importlib.metadata.requires("burnish") or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            version = "missing"
            with suppress(importlib.metadata.PackageNotFoundError):
                version = importlib.metadata.version(requirement.name)
            found.append(f"{requirement.name} {version}")
            if version == "missing" or not requirement.specifier.contains(version, prereleases=True):
                wrong.append(f"'{requirement.name}{requirement.specifier}'")
    return ("fail" if wrong else "ok"), ", ".join(found), f"pip install {' '.join(wrong)}" if wrong else ""


def check_device() -> Finding:
    """Where torch computes."""
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    found = f"{name}; {os.cpu_count()} cores, of which a run uses one unless threads=N says otherwise"
    return "ok", f"{found}; Python {platform.python_version()} on {platform.system()} {platform.machine()}", ""


def check_folder() -> Finding:
    """Whether runs can be written here."""
    free, here = shutil.disk_usage(".").free / 1e9, Path.cwd()
    if not os.access(here, os.W_OK | os.X_OK):
        return "warn", f"{here} can't be written", "change folder, or set output_dir"
    advice = "free some, or set output_dir to a disk that has some" if free < NEEDED_DISK else ""
    return "fail" if advice else "ok", f"{free:.1f} GB free in {here}", advice


def check_shared_memory() -> Finding:
    """What weights and batches of several processes travel through."""
    if not SHARED.is_dir():
        return "ok", f"no {SHARED}", ""
    free = shutil.disk_usage(SHARED).free / 1e9
    advice = "for several GPUs or vLLM: docker run --shm-size 8g, or as much as the model has bytes"
    return ("ok", f"{free:.1f} GB free", "") if free >= NEEDED_SHARED else ("warn", f"{free:.2f} GB free", advice)


def check_quickstart() -> Finding:
    """Whether the quickstart's recipe passes the checks of ``burnish train``."""
    from burnish.config import load
    from burnish.config.disk import check_disk

    check_disk(load("quickstart"))
    return "ok", "recipe, model and prompts are there", ""


def check_plugins() -> Finding:
    """Plugins of installed packages."""
    from burnish.registry import ENTRY_POINTS, open_entry_points

    try:
        opened = open_entry_points()
    except UserError as error:
        return "warn", str(error), "only runs that name something of it are refused"
    names = ", ".join(f"{name} ({what})" for name, what in opened.items())
    return "ok", names or f"no installed package has any (entry points {ENTRY_POINTS})", ""


CHECKS: dict[str, Callable[[], Finding]] = {
    "packages": check_packages, "device": check_device, "folder": check_folder, "shared memory": check_shared_memory,
    "quickstart": check_quickstart, "plugins": check_plugins,
}  # fmt: skip
