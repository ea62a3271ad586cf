"""Runs training over and over in forks of one process that has imported everything, and kills it where it is told.

Its argument is the recipe that it imports everything for, so that a fork starts at once. It reads one JSON object a
line: {"recipe": name, "overrides": [...], "die_after": seconds | null, "die_at": n | null}. ``die_at`` kills the run
at the n-th call that changes the file system, so that every state of saving is met. It answers with one JSON line:
{"status": exit code or minus the signal, "calls": counted, "seconds": wall time}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import burnish.commands.train
from burnish.config import load
from burnish.tasks import assemble

COUNTED = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def count_calls(die_at: int | None) -> Callable[[], int]:
    """Count calls that change files, and die before the one that is asked for."""
    calls = 0

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == die_at:
                die()
            return original(*args, **kwargs)

        return wrapper

    for name in COUNTED:
        setattr(os, name, counting(getattr(os, name)))
    return lambda: calls


def run(order: dict[str, Any], report: int) -> int:
    if order["die_after"] is not None:
        signal.signal(signal.SIGALRM, lambda *_: die())
        signal.setitimer(signal.ITIMER_REAL, order["die_after"])
    counted = count_calls(order["die_at"])
    code = burnish.commands.train.train(load(order["recipe"], order["overrides"]))
    os.write(report, str(counted()).encode())
    return code


def import_everything(recipe: str, *overrides: str) -> None:
    """Make what a run is made of, and drop it: models are imported by whoever loads them."""
    assembly = assemble(load(recipe, ["model.lora.rank=2", *overrides]))
    assembly.check_data()
    assembly.check()


def main() -> None:
    import warnings

    warnings.simplefilter("ignore")
    import_everything(sys.argv[1])
    for line in sys.stdin:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 1)
            os._exit(run(json.loads(line), write))
        os.close(write)
        started = time.monotonic()
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() - started > 120:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
        calls = os.read(read, 100).decode()
        os.close(read)
        answer = {
            "status": os.waitstatus_to_exitcode(status),
            "calls": int(calls or 0),
            "seconds": time.monotonic() - started,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
