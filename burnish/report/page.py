"""Puts the page together."""

from __future__ import annotations

from pathlib import Path

from burnish.folder import RunFolder, write_whole
from burnish.report.summary import Summary


def write_report(folder: RunFolder) -> Path:
    """Write report.html from what is in the folder, finished or not; an older one is replaced."""
    run = Summary.read(folder)
    write_whole(folder.report, f"<!doctype html><p>{run.sentence()}</p>".encode())
    return folder.report
