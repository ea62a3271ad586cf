"""A file system that fails, or a process that is killed, at a chosen step of saving."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest


def disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Faults:
    """Counts every step that changes the disk; at step ``at`` the ``fault`` happens instead of its end."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int | None, fault: Callable[[], None]) -> None:
        self.steps, self.at, self.fault = 0, at, fault
        path_open = Path.open

        def opened(path: Path, mode: str = "r", *rest: object, **kwargs: object) -> object:
            if "w" not in mode:
                return path_open(path, mode, *rest, **kwargs)
            self.step()
            return Faulty(path_open(path, mode, *rest, **kwargs), self)

        patch.setattr(Path, "open", opened)
        for owner, name in [(Path, "mkdir"), (Path, "rename"), (os, "fsync")]:
            patch.setattr(owner, name, self.counted(getattr(owner, name)))
        rmtree = shutil.rmtree

        def removed(folder: Path, ignore_errors: bool = False) -> None:
            # what cleans up after a failure has to work
            if folder.is_dir() and not (ignore_errors and fault is disk_full):
                next(folder.iterdir()).unlink()
                self.step()
            rmtree(folder, ignore_errors)

        patch.setattr(shutil, "rmtree", removed)

    def step(self) -> None:
        self.steps += 1
        if self.steps - 1 == self.at:
            self.fault()

    def counted(self, call: Callable) -> Callable:
        def stepped(*args: object, **kwargs: object) -> object:
            self.step()
            return call(*args, **kwargs)

        return stepped


class Faulty:
    """A file that writes half of the data and then fails."""

    def __init__(self, file, faults: Faults) -> None:
        self.file, self.faults = file, faults

    def write(self, data) -> int:
        half = len(data) // 2
        self.file.write(data[:half])
        if self.faults.steps == self.faults.at:
            self.file.flush()
        self.faults.step()
        return half + self.file.write(data[half:])

    def flush(self) -> None:
        self.faults.step()
        self.file.flush()

    def fileno(self) -> int:
        return self.file.fileno()

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()
