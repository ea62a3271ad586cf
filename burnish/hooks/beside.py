"""What goes on beside a run, in threads of its own: copies of checkpoints here, exports and trackers elsewhere."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread, main_thread

from burnish.checkpoint.files import Manifest, numbered, read_manifest
from burnish.checkpoint.remote import Remote
from burnish.config.run_folder import RunFolder
from burnish.hooks import Hook
from burnish.utils.addresses import one_line, redacted
from burnish.utils.errors import UserError
from burnish.utils.terminal import printable

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0  # seconds before what failed is tried again
SHORT = 10.0  # seconds that a run which was stopped, or failed, waits at its end
AT_EXIT = 30.0  # seconds that libraries which did not end in time have when the process ends


class Follower(ABC):
    """Follows what a run writes. Nothing waits for it before the end."""

    name = ""  # of its metrics

    def __init__(self, option: str, folder: RunFolder) -> None:
        """Args: ``option`` that asks for it, which messages begin with."""
        self.option, self.folder = option, folder
        self.upto = self.delivered = -1  # updates that there are, and that are done
        self.failures, self.problem = 0, ""  # so far, and why the last attempt failed
        self.outcome = "failed"  # of the run
        self.ended = Event()  # everything is done
        self._wake, self._ending = Event(), Event()
        self._said: set[str] = set()

    @abstractmethod
    def work(self, *, last: bool) -> None:
        """Do what there is to do up to ``upto``; whatever is raised, it is tried again. ``last``: the run has ended."""

    def left(self) -> str:
        """What is not done."""
        return f"not done for all checkpoints up to update {max(self.upto, 0)}"

    def start(self) -> None:
        Thread(target=self._follow, name=self.option, daemon=True).start()

    def tell(self, update: int) -> None:
        """There is something to do, up to an update."""
        self.upto = max(self.upto, update)
        self._wake.set()

    def end(self, outcome: str) -> None:
        """Do what is left, with one more attempt if it fails; ``ended`` says when."""
        self.outcome = outcome
        self._ending.set()
        self._wake.set()

    def warn(self, text: str) -> None:
        """Log a warning once."""
        if text not in self._said:
            self._said.add(text)
            log.warning("%s: %s", self.option, printable(redacted(text)))

    def _follow(self) -> None:
        pause = FIRST_PAUSE
        while not self.ended.is_set():
            self._wake.wait()
            self._wake.clear()
            last, delivered = self._ending.is_set(), self.delivered
            try:
                self.work(last=last)
            except BaseException as error:  # whatever a library raises, SystemExit included
                self.problem = one_line(error)
                self.failures += 1
                self.warn(f"{self.problem}; the run goes on, and it is tried again")
                if last:
                    return
                self._ending.wait(FIRST_PAUSE if self.delivered > delivered else pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                self._wake.set()
            else:
                self.problem, pause = "", FIRST_PAUSE
                if last:
                    self.ended.set()


class Beside(Hook):
    """Tells followers of checkpoints. It stands before ``MetricsLog``, for what it counts."""

    def __init__(self, followers: Sequence[Follower], folder: RunFolder, *, wait: float, option: str) -> None:
        """Args: ``wait`` are the seconds of ``option`` that they may still take at the end of the run."""
        self.followers, self.folder, self.wait, self.option = followers, folder, wait, option
        self.outcome = "failed"

    def start(self, done: int) -> None:
        for follower in self.followers:
            follower.start()
        self.tell()

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        self.tell()
        for follower in self.followers:
            metrics[f"perf/{follower.name}/failures"] = float(follower.failures)
            metrics[f"perf/{follower.name}/updates_behind"] = float(max(follower.upto, 0) - max(follower.delivered, 0))

    def tell(self) -> None:
        """Say which checkpoint is the newest."""
        newest = max((int(path.name) for path in numbered(self.folder.checkpoints)), default=-1)
        for follower in self.followers:
            follower.tell(newest)

    def finish(self) -> None:
        self.outcome = "finished"

    def close(self) -> None:
        """Give them some time to do what is left; what is not done the same command does later."""
        seconds = self.wait if self.outcome == "finished" else min(self.wait, SHORT)
        self.tell()
        for follower in self.followers:
            follower.end(self.outcome)
        deadline = time.monotonic() + seconds
        for follower in self.followers:
            if not follower.ended.wait(max(deadline - time.monotonic(), 0)):
                why = follower.problem or f"it took longer than {seconds:g} s ({self.option})"
                log.warning("%s: %s: %s; the same command does what is left", follower.option, follower.left(), why)
        if not all(follower.ended.is_set() for follower in self.followers):
            Thread(target=_leave, args=(self.outcome != "finished",), daemon=True).start()


def _leave(status: int) -> None:
    """End the process where what a library does at exit hangs."""
    main_thread().join()
    time.sleep(AT_EXIT)
    os._exit(status)


class OfCheckpoints(Follower):
    """Does something with every checkpoint, the newest first."""

    @abstractmethod
    def is_done(self, checkpoint: Path, manifest: Manifest) -> bool:
        """Whether that is done with a checkpoint as it is; its manifest changes when a validation is recorded."""

    def pending(self) -> tuple[Path, Manifest] | None:
        """The newest checkpoint with which it is not done."""
        for path in sorted(numbered(self.folder.checkpoints), reverse=True):
            with suppress(OSError, UserError):  # it is being removed, or was never complete
                manifest = read_manifest(path)
                if not self.is_done(path, manifest):
                    return path, manifest
        return None


class Copies(OfCheckpoints):
    """Copies every checkpoint to an address."""

    name = "checkpoint_copy"

    def __init__(self, folder: RunFolder, address: str) -> None:
        super().__init__("checkpoint.copy_to", folder)
        self.address = address
        self._remote: Remote | None = None
        self._copied: dict[str, Manifest] = {}  # by name

    def is_done(self, checkpoint: Path, manifest: Manifest) -> bool:
        return self._copied.get(checkpoint.name) == manifest

    def work(self, *, last: bool) -> None:
        if self._remote is None:
            self._remote = Remote(self.address)
            there = len(self._remote.updates())  # whoever can't list it learns that now
            log.info("%s: %s", self.option, redacted(f"copies go to {self.address}, which has {there}"))
        for folder, manifest in iter(self.pending, None):
            try:
                self._remote.copy(folder)
            except (FileNotFoundError, UserError) as error:
                if folder.is_dir() and not isinstance(error, UserError):
                    raise
                removed = f"{folder} was removed before it was copied; raise checkpoint.keep_last to copy every one"
                self.warn(str(error) if folder.is_dir() else removed)  # damaged here: no second try changes that
            else:
                self._remote.copy_records(self.folder.path)
                self.delivered = max(self.delivered, int(folder.name))
            self._copied[folder.name] = manifest
