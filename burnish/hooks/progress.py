"""Progress of a run: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import atexit
import math
import re
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from burnish.config import RunConfig
from burnish.hooks import Hook
from burnish.utils import terminal

WINDOW = 10  # updates that the estimate of the remaining time is based on
EXACT = re.compile(r"val-aux/.+/(ocr_)?exact/mean@\d+")  # components shown with the validation reward
VOTE = re.compile(r"val-core/.+/reward/(maj@\d+)/mean")
PAUSE = 5.0  # seconds between plain lines


class Progress(Hook):
    """Update, reward, last validation, seconds per update, remaining time. Every validation prints a line."""

    def __init__(
        self,
        config: RunConfig,
        *,
        done: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.done, self.clock = config.steps, done, clock
        self.console = console or terminal.console()
        self._ends: list[float] = []
        self._validation = ""
        self._written = -math.inf
        self._bar: Bar | None = None
        self._task = TaskID(0)

    def start(self, done: int) -> None:
        self._ends = [self.clock()]
        if terminal.redraws(self.console):
            line = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
            # drawn after each update, without a thread
            self._bar = Bar(BarColumn(bar_width=12), line, console=self.console, auto_refresh=False)
            self._task = self._bar.add_task(f"update {done}/{self.total}", total=self.total, completed=done)
            self._bar.start()
            terminal.bars.append(self._bar)
            atexit.register(self._bar.stop)  # an error must not leave a terminal without its cursor

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if update > self.done:
            self._ends = [*self._ends, self.clock()][-WINDOW - 1 :]
        else:
            self._ends = [self.clock()]  # the first validation is no update
        validation = _validation(metrics)
        self._validation = validation or self._validation
        text = self.describe(update, metrics)
        if self._bar is not None:
            if validation:
                self._print(f"update {update}/{self.total} | {validation}")
            self._bar.update(self._task, completed=update, description=text, refresh=True)
        elif validation or update == self.total or self._ends[-1] - self._written >= PAUSE:
            self._written = self._ends[-1]
            self._print(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            terminal.bars.remove(self._bar)
            atexit.unregister(self._bar.stop)

    def describe(self, update: int, metrics: dict[str, float]) -> str:
        """The line of an update, most important first since a narrow terminal cuts it."""
        parts = [f"update {update}/{self.total}"]
        reward = metrics.get("critic/rewards/mean")
        if reward is not None:
            parts.append(f"reward {_number(reward)}")
        if len(self._ends) > 1:
            seconds = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
            parts += [f"{terminal.duration(seconds * (self.total - update))} left", f"{seconds:.1f} s/update"]
        if self._validation:
            parts.append(self._validation)
        return " | ".join(parts)

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _validation(metrics: dict[str, float]) -> str:
    """Result of a validation, such as ``validation 0.912, maj@8 0.934 (exact 0.804)``; "" if there was none."""
    rewards = [v for k, v in metrics.items() if k.startswith("val-core/") and "/reward/mean@" in k]
    exact = [v for k, v in metrics.items() if EXACT.fullmatch(k)]
    if not rewards:
        return ""
    text = f"validation {_number(sum(rewards) / len(rewards))}"
    votes = [(match[1], v) for k, v in metrics.items() if (match := VOTE.fullmatch(k))]
    if len({size for size, _ in votes}) == 1:
        text += f", {votes[0][0]} {_number(sum(v for _, v in votes) / len(votes))}"
    return f"{text} (exact {_number(sum(exact) / len(exact))})" if exact else text


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "missing"
