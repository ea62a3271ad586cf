"""A reward that judges nothing, and does to the process that asks it what it was told."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from burnish.runtime.weight_transfer import Receiver


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


def spoil_at(folder: Path, call: int) -> None:
    """Whoever asks it for the ``call``-th time changes a byte of the weights that come next."""
    (folder / f"spoil-{call}").touch()


def slow_at(folder: Path, call: int) -> None:
    """Whoever asks it for the ``call``-th time gets the answer seconds later."""
    (folder / f"slow-{call}").touch()


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
    if (place / f"slow-{count}").exists():
        time.sleep(3.0)
    if (spoil := place / f"spoil-{count}").exists():
        spoil.rename(place / f"spoiled-{count}")
        from burnish.runtime.weight_transfer import Receiver

        for receiver in (one for one in gc.get_objects() if isinstance(one, Receiver)):
            _spoil(receiver)
    return [0.0] * len(samples)


def _spoil(receiver: Receiver) -> None:
    fill = receiver._fill

    def filling(layout: Any, version: int, buckets: Iterator[torch.Tensor]) -> Any:
        return fill(layout, version, map(spoiled, buckets))

    def spoiled(bucket: torch.Tensor) -> torch.Tensor:
        bucket[0] ^= 4
        return bucket

    receiver._fill = filling  # type: ignore[method-assign]
