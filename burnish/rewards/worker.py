"""What a scoring process does: it answers one question after another until its parent is gone.

It imports no torch, so that it is there in about a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from multiprocessing.connection import Connection

from burnish.rewards.base import AnyReward
from burnish.rewards.judging import judge

READY = "ready"


def main(pipe: Connection, parent: int) -> None:
    """Load rewards, then judge samples.

    Args:
        pipe: to the parent; brings the rewards by label, then (label, samples, prompts) for each question, and
            takes READY, then a list of verdicts for each answer.
        parent: process id; the process ends when this is no longer its parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then ends this process
    os.set_inheritable(pipe.fileno(), False)
    watch(parent)
    # a closed pipe: the parent is gone, or wants no more
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        rewards: dict[str, AnyReward] = pipe.recv()
        for reward in rewards.values():
            # it comes again, with a note, at the reward's first sample
            with contextlib.suppress(Exception, SystemExit):
                reward.prepare()
        pipe.send(READY)
        while True:
            label, samples, prompts = pipe.recv()
            pipe.send(judge(rewards[label], samples, prompts))


def watch(parent: int) -> None:
    """End this process as soon as ``parent`` is no longer its parent."""
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    # the pipe tells nothing to a process that is busy, or while a child of the parent holds its other end
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
