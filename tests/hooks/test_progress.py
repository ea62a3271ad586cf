"""What a run says while it trains: a line for slow updates, few for fast ones, and a bar on a terminal."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from burnish.hooks.progress import Progress

VALIDATION = {"val-core/default/reward/mean@4": 0.9123, "val-aux/default/ocr_exact/mean@4": 0.8}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(*, seconds: float, updates: int, done: int = 0, width: int = 0) -> str:
    """The output of a run with a validation before training and after every tenth update."""
    out, now = Terminal() if width else io.StringIO(), [100.0]
    console = Console(file=out, force_terminal=bool(width), width=width or 100, legacy_windows=False, _environ={})
    hook = Progress(SimpleNamespace(steps=updates), done=done, console=console, clock=lambda: now[0])
    hook.start(done)
    now[0] += 1000  # judging the untrained model takes its time, which is no update's
    hook(done, dict(VALIDATION))
    for update in range(done + 1, updates + 1):
        now[0] += seconds
        metrics = {"critic/rewards/mean": 0.5 + update / 1000}
        hook(update, metrics | VALIDATION if update % 10 == 0 else metrics)
    hook.close()
    return out.getvalue()


def test_without_a_terminal():
    lines = watch(seconds=6.0, updates=12).splitlines()
    assert [int(re.match(r"update (\d+)/", line)[1]) for line in lines] == list(range(13))
    assert lines[0] == "update 0/12 | validation 0.912 (exact 0.800)"
    assert lines[5] == "update 5/12 | reward 0.505 | 42 s left | 6.0 s/update | validation 0.912 (exact 0.800)"
    assert "\\x1b" not in repr(lines)
    assert "| 18 s left | 6.0 s/update |" in watch(seconds=6.0, updates=10, done=6), "a resumed run counts its own time"
    assert "3 h 05 min left" in watch(seconds=3700.0, updates=4)
    fast = {int(number) for number in re.findall(r"update (\d+)/", watch(seconds=0.6, updates=100))}
    assert set(range(0, 101, 10)) <= fast
    assert len(fast) < 25


@pytest.mark.parametrize("width", [30, 60, 120])
def test_a_terminal_shows_one_line_and_gets_its_cursor_back(width):
    text = watch(seconds=1.0, updates=12, width=width)
    frames = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text))
    moving = [frame for frame in frames if "reward" in frame]
    assert len([frame for frame in frames if re.match(r"update \d+/12 . validation", frame)]) >= 2
    assert all(len(frame) <= width for frame in moving)
    assert all(any(f"update {i}/12" in frame for frame in moving) for i in range(1, 13))
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0
