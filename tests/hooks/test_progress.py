"""What a run says while it trains."""

import io
import re
from types import SimpleNamespace

from rich.console import Console

from burnish.hooks.log import Progress
from tests.support.tiny_run import TinyRun

VALIDATION = {
    "val-core/default/reward/mean@4": 0.9123, "val-aux/default/ocr_exact/mean@4": 0.8,
    "val-aux/default/ocr_exact/maj@4/mean": 0.9, "val-aux/default/ocr_exact/maj@4/std": 0.1,
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(out: io.StringIO, *, seconds: float, updates: int, width: int = 100) -> str:
    """The output of a run with a validation before training and after every tenth update."""
    now, terminal = [100.0], isinstance(out, Terminal)
    console = Console(file=out, force_terminal=terminal, width=width, legacy_windows=False, _environ={})
    hook = Progress(SimpleNamespace(steps=updates), done=0, console=console, clock=lambda: now[0])
    hook.start(0)
    now[0] += 1000  # judging the untrained model takes its time, which is no update's
    hook(0, dict(VALIDATION))
    for update in range(1, updates + 1):
        now[0] += seconds
        metrics = {"critic/rewards/mean": 0.5 + update / 1000}
        hook(update, metrics | VALIDATION if update % 10 == 0 else metrics)
    hook.close()
    return out.getvalue()


def test_a_log_gets_plain_lines_and_a_terminal_one_line_and_its_cursor_back():
    lines = watch(io.StringIO(), seconds=6.0, updates=12).splitlines()
    assert len(lines) == 13
    assert lines[0] == "update 0/12 | validation 0.912 (exact 0.800)"
    assert lines[5] == "update 5/12 | reward 0.505 | 42 s left | 6.0 s/update | validation 0.912 (exact 0.800)"
    assert len(watch(io.StringIO(), seconds=0.6, updates=100).splitlines()) < 25, "fast updates leave few lines"
    text = watch(Terminal(), seconds=1.0, updates=12, width=60)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    moving = [frame for frame in re.split(r"[\r\n]+", shown) if "reward" in frame]
    assert all(len(frame) <= 60 for frame in moving)
    assert all(any(f"update {i}/12" in frame for frame in moving) for i in range(1, 13))
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0


def test_a_run_tells_its_validations_and_its_last_update(files):
    run = TinyRun(files, "language", "llama", "algorithm=grpo", name="progress")
    out = run.train().out
    assert "\x1b" not in out
    assert re.search(r"update 0/3 \| validation \d", out)
    assert re.search(r"update 3/3 \| reward \d.* s/update \| validation \d", out)
