"""A reward that judges nothing, and does to the process that asks it what it was told."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def option(folder: Path) -> str:
    """Of a run that is to have it."""
    folder.mkdir()
    about = "name: function, weight: 0, path: 'tests.support.deadly:judge'"
    return f"rewards.deadly={{{about}, arguments: {{folder: {folder}}}}}"


def calls(folder: Path) -> int:
    """How often it was asked."""
    return (folder / "calls").stat().st_size


def die_at(folder: Path, call: int) -> None:
    """Whoever asks it for the ``call``-th time, counted over all processes, is killed."""
    (folder / f"die-{call}").touch()


def judge(samples: Sequence[Any], prompts: Sequence[Any], folder: str) -> list[float]:
    place = Path(folder)
    with (place / "calls").open("ab") as calls:
        calls.write(b".")
        calls.flush()
        count = calls.tell()
    order = place / f"die-{count}"
    if order.exists():
        order.rename(place / f"died-{count}")
        os.kill(os.getpid(), signal.SIGKILL)
    return [0.0] * len(samples)
