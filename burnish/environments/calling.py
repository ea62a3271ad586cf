"""What the process of tools does: it answers one call after another until its parent is gone. Free of torch."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from burnish.rewards.worker import watch
from burnish.utils.user_code import load_object

READY = "ready"


def main(pipe: Connection, parent: int) -> None:
    """Load functions, then call them.

    Args:
        pipe: to the parent; brings the paths of the functions by name, then (name, arguments) of each call, and takes
            READY or what is wrong, then a text for each call.
        parent: process id; the process ends when this is no longer its parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(pipe.fileno(), False)
    sys.stdout = sys.stderr  # what a tool prints is no metric of the run
    watch(parent)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            functions = {name: load_object(path, "tool") for name, path in pipe.recv().items()}
        except Exception as error:
            pipe.send(str(error))
            return
        pipe.send(READY)
        while True:
            name, arguments = pipe.recv()
            pipe.send(answer(functions[name], arguments))


def answer(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """What a function returned, as text, or what it failed with."""
    try:
        return str(function(**arguments))
    except (Exception, SystemExit) as error:  # the function is the user's, the arguments are the model's
        return f"error: {type(error).__name__}: {error}"
