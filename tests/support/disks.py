"""Disks that refuse."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, *, size: str = "1m") -> Iterator[Path]:
    """A file system of its own in a new folder; the test is skipped where none can be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("file systems can't be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True, timeout=10)


def make_read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True, timeout=10)


def fill(folder: Path) -> None:
    """Leave no byte free."""
    with (folder / ".filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"0" * 4096)
        except OSError:
            return
