"""The process of a tracker: reads a run's files up to where it is told, and hands them to the tracker's library."""

from __future__ import annotations

import importlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from burnish.trackers.base import About, Tracker
from burnish.trackers.names import renamed
from burnish.trackers.reading import STEP, Notices, Progress, Rows, read_samples
from burnish.utils import feed_process
from burnish.utils.feed_process import Orders
from burnish.utils.secrets import redacted

OFTEN = 0.5  # seconds between two messages about progress

TRACKERS = {  # module and class of each
    "wandb": "burnish.trackers.wandb:Wandb",
    "swanlab": "burnish.trackers.swanlab:Swanlab",
    "mlflow": "burnish.trackers.mlflow:Mlflow",
    "trackio": "burnish.trackers.trackio:Trackio",
    "clearml": "burnish.trackers.clearml:Clearml",
    "tensorboard": "burnish.trackers.tensorboard:Tensorboard",
}


def serve(end: socket.socket, lines: IO[str], parent: int) -> None:
    """The process of a tracker; see ``burnish.utils.feed_process``."""
    feed_process.serve(end, lines, parent, track)


def track(told: dict[str, Any], orders: Orders, say: Callable[..., None]) -> None:
    """Open the tracker, send what there is, and close it when the run has ended."""
    run, kind = Path(told["run"]), str(told["kind"])
    folder = run / "trackers"
    (folder / kind).mkdir(parents=True, exist_ok=True)
    progress = Progress(folder / f"{kind}.json")
    about = About(
        name=told["name"], options=told["options"], config=told["config"], folder=folder / kind,
        names=told["names"], id=progress.id,
    )  # fmt: skip
    module, _, name = TRACKERS[kind].partition(":")
    tracker: Tracker = getattr(importlib.import_module(module), name)(about)
    progress.write(tracker.id, progress.step)
    say(opened=redacted(tracker.url or ""), step=progress.step)
    rows, said = Rows(run / "metrics.jsonl", progress.step), 0.0
    notices = Notices(run / "alarms.jsonl", progress.step)
    while True:
        orders.changed.clear()
        outcome = orders.outcome
        for step, values in rows.upto(orders.upto):
            tracker.scalars(step, renamed(step, values | {STEP: float(step)}, told["names"]))
            try:
                if samples := read_samples(run / "validation" / f"{step:06d}", told["samples"]):
                    tracker.samples(step, samples)
            except Exception as error:  # of one file, which would fail again
                say(warning=redacted(f"samples of update {step}: {type(error).__name__}: {error}")[:500])
            for notice in notices.upto(step):
                tracker.alarm(notice)
            progress.write(tracker.id, step)
            if time.monotonic() - said > OFTEN:
                said = time.monotonic()
                say(step=step)
        say(step=progress.step)
        if outcome is not None:
            tracker.close(outcome)
            return
        orders.changed.wait()
