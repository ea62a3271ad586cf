"""The process of a tracker: reads a run's files up to where it is told, and hands them to the tracker's library."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from burnish.trackers.base import About, Outcome, Tracker
from burnish.trackers.names import renamed
from burnish.trackers.reading import STEP, Notices, Progress, Rows, read_samples
from burnish.trackers.secrets import redacted
from burnish.utils.json_text import parse_json

GRACE = 60.0  # seconds that a tracker may still write after its run was killed
OFTEN = 0.5  # seconds between two messages about progress

TRACKERS = {  # module and class of each
    "wandb": "burnish.trackers.wandb:Wandb",
    "swanlab": "burnish.trackers.swanlab:Swanlab",
    "mlflow": "burnish.trackers.mlflow:Mlflow",
    "trackio": "burnish.trackers.trackio:Trackio",
    "tensorboard": "burnish.trackers.tensorboard:Tensorboard",
}


class Orders:
    """What the run says: up to which update its files are complete, and how it ended."""

    def __init__(self, lines: IO[str]) -> None:
        self.changed = threading.Event()
        self.upto = -1
        self.outcome: Outcome | None = None
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: IO[str]) -> None:
        try:
            for line in lines:
                order = parse_json(line)
                self.upto = max(self.upto, order.get("upto", -1))
                self.outcome = order.get("end", self.outcome)
                self.changed.set()
        finally:
            self.outcome = self.outcome or "failed"  # the run was killed
            self.changed.set()


def serve(end: socket.socket, lines: IO[str], parent: int) -> None:
    """Track a run until it ends.

    Args:
        end: of the connection to the run's process.
        lines: what comes from there: what to track, and how; then orders.
        parent: process id of the run.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the run, which then ends this process
    os.set_inheritable(end.fileno(), False)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()

    def say(**message: Any) -> None:
        with suppress(OSError):  # the run was killed; what it left is sent all the same
            end.sendall(json.dumps(message).encode() + b"\n")

    told = parse_json(lines.readline())
    orders = Orders(lines)
    try:
        track(told, orders, say)
    except BaseException as error:  # whatever a library raises, SystemExit included
        text = " ".join(redacted(f"{type(error).__name__}: {error}").split())
        say(failed=text[:500])
        os._exit(1)  # what a library does at exit may hang
    say(done=True)
    os._exit(0)


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


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    time.sleep(GRACE)
    os._exit(1)
