"""The page of the board and of reports: a style sheet and scripts that are written by hand, without a build step."""

from __future__ import annotations

from functools import cache
from pathlib import Path

SCRIPTS = (
    "base", "chart", "media", "overview", "curves", "gallery", "prompts", "groups", "time", "compare", "runs", "main",
)  # fmt: skip


@cache
def script() -> str:
    """All scripts in the order in which they need each other."""
    return "\n".join(_read(f"{name}.js") for name in SCRIPTS)


@cache
def style() -> str:
    """The style sheet."""
    return _read("board.css")


@cache
def shell() -> str:
    """The page, which is empty until its script has run."""
    return _read("board.html")


@cache
def icon() -> str:
    """A small picture for the tab of a browser."""
    return _read("icon.svg")


def _read(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
