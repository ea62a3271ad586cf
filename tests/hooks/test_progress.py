"""What a run says while it trains."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from burnish.hooks.progress import Progress, duration

VALIDATION = {"val-core/default/reward/mean@4": 0.9123, "val-aux/default/ocr_exact/mean@4": 0.8}
ROOT = Path(__file__).parents[2]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(*, terminal: bool, seconds: float, updates: int, total: int | None = None, width: int = 100) -> str:
    """The output of a run with a validation before training and after every tenth update."""
    out, clock = Terminal() if terminal else io.StringIO(), Clock()
    console = Console(file=out, force_terminal=terminal, width=width, legacy_windows=False, _environ={})
    hook = Progress(SimpleNamespace(steps=total or updates), done=0, console=console, clock=clock)
    hook.start(0)
    clock.now += 1000  # judging the untrained model takes its time, which is no update's
    hook(0, dict(VALIDATION))
    for update in range(1, updates + 1):
        clock.now += seconds
        metrics = {"critic/rewards/mean": 0.5 + update / 1000}
        hook(update, metrics | VALIDATION if update % 10 == 0 else metrics)
    hook.close()
    return out.getvalue()


def updates_of(lines: list[str]) -> list[int]:
    return [int(re.match(r"update (\d+)/", line)[1]) for line in lines]


def test_slow_updates_have_a_plain_line_each():
    lines = watch(terminal=False, seconds=6.0, updates=12).splitlines()
    assert updates_of(lines) == list(range(13))
    assert lines[5] == ("update 5/12 | reward 0.505 | 42 s left | 6.0 s/update | validation 0.912 (exact 0.800)")
    assert lines[0] == "update 0/12 | validation 0.912 (exact 0.800)"
    assert not any("\x1b" in line or "\r" in line for line in lines)


def test_a_validation_tells_what_the_majority_answers():
    out = io.StringIO()
    hook = Progress(SimpleNamespace(steps=1), done=0, console=Console(file=out, width=100, _environ={}))
    hook.start(0)
    votes = {"val-core/a/b/reward/maj@8/mean": 0.95, "val-core/a/b/reward/maj@8/std": 0.1}
    others = {"val-aux/default/ocr_exact/maj@8/mean": 0.9, "val-aux/default/ocr_exact/maj@8/std": 0.1}
    hook(0, VALIDATION | votes | others)
    hook.close()
    assert "validation 0.912, maj@8 0.950 (exact 0.800)" in out.getvalue()


def test_fast_updates_leave_few_lines_but_every_validation():
    found = updates_of(watch(terminal=False, seconds=0.6, updates=100, total=101).splitlines())
    assert {0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100} <= set(found)
    assert len(found) < 25
    assert updates_of(watch(terminal=False, seconds=0.1, updates=3).splitlines()) == [0, 3]


@pytest.mark.parametrize("width", [30, 60, 120])
def test_a_terminal_shows_one_line_and_gets_its_cursor_back(width):
    text = watch(terminal=True, seconds=1.0, updates=12, width=width)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    frames = [frame for frame in re.split(r"[\r\n]+", shown) if frame.strip()]
    validations = [frame for frame in frames if re.match(r"update \d+/12 . validation", frame)]
    moving = [frame for frame in frames if "reward" in frame]
    assert len(validations) >= 2
    assert all(len(frame) <= width for frame in moving)
    assert all(any(f"update {i}/12" in frame for frame in moving) for i in range(1, 13))
    assert ("━" in moving[0]) == (width == 120)  # numbers matter more than a bar
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0


def test_an_error_leaves_a_whole_terminal():
    script = textwrap.dedent(
        """
        import sys
        from types import SimpleNamespace
        sys.stdout.isatty = lambda: True
        from rich.console import Console
        from burnish.hooks.progress import Progress
        hook = Progress(SimpleNamespace(steps=5), done=0, console=Console(force_terminal=True, width=80))
        hook.start(0)
        hook(1, {"critic/rewards/mean": 0.5})
        raise RuntimeError("lost")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT,
        env=os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "RuntimeError: lost" in done.stdout + done.stderr
    assert done.stdout.rfind("\x1b[?25h") > done.stdout.rfind("\x1b[?25l") >= 0


def test_a_resumed_run_counts_only_its_own_time():
    clock = Clock()
    hook = Progress(SimpleNamespace(steps=10), done=6, console=Console(file=io.StringIO()), clock=clock)
    hook.start(6)
    clock.now += 2
    hook(7, {})
    assert hook.describe(7, {}) == "update 7/10 | 6 s left | 2.0 s/update"


def test_a_missing_reward_is_said():
    hook = Progress(SimpleNamespace(steps=1), done=0, console=Console(file=io.StringIO()))
    assert "reward missing" in hook.describe(1, {"critic/rewards/mean": float("nan")})


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (99, "99 s"), (99.6, "2 min"), (3590, "1 h 00 min"), (11100, "3 h 05 min")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words
