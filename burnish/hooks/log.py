"""What a run writes of its updates: metrics, groups, timeline, failures, report; and its progress, on a terminal."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from burnish.config import RunConfig
from burnish.config.run_folder import STEP, TIME, RunFolder
from burnish.hooks import Hook
from burnish.hooks.checkpoints import validation_reward
from burnish.metrics import Stopwatch
from burnish.options import StepOptions
from burnish.report.page import write_report
from burnish.report.samples import short
from burnish.tasks.sample_files import write_index
from burnish.training.profiling import PhaseMemory
from burnish.types.rollout import Collected, Failure, Rollouts
from burnish.utils import terminal
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.reading import read_file

log = logging.getLogger(__name__)


class Lines:
    """A file with a JSON object per update."""

    def __init__(self, file: Path, key: str = "update") -> None:
        """Args: ``key`` of the update's number."""
        self.file, self.key = file, key

    def begin(self, done: int) -> list[bytes]:
        """Drop, atomically, truncated lines and those of updates after ``done``, which will be done again.

        Returns:
            The lines that are left.
        """
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.touch()
            kept = [line for line in read_file(self.file).splitlines() if self._update(line) <= done]
            write_atomically(self.file, b"".join(line + b"\n" for line in kept))
        return kept

    def _update(self, line: bytes) -> float:
        """The update of a line; infinity for a truncated one."""
        try:
            return float(parse_json(line)[self.key])
        except (ValueError, KeyError, TypeError):
            return math.inf

    def write(self, record: Mapping[str, Any], *, sync: bool = False) -> None:
        """Add an object; with ``sync`` it is on the disk when this returns."""
        with writing(self.file), self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            if sync:
                file.flush()
                os.fsync(file.fileno())


class MetricsLog(Hook):
    """Metrics of every update, in metrics.jsonl and for TensorBoard."""

    def __init__(self, folder: RunFolder, *, resumed_at: int | None) -> None:
        self.folder, self.resumed_at = folder, resumed_at
        self.lines = Lines(folder.metrics, STEP)
        self.seconds = 0.0  # of the run so far, without what was lost with a process
        self._scalars: Any = None  # TensorBoard's

    def start(self, done: int) -> None:
        """Drop the metrics after the checkpoint that this process resumes from."""
        from torch.utils.tensorboard import SummaryWriter

        kept = self.lines.begin(-1 if self.resumed_at is None else self.resumed_at)
        if kept:
            self.seconds = parse_json(kept[-1]).get(TIME) or 0.0
        purge = None if self.resumed_at is None else self.resumed_at + 1  # the first step to discard of earlier files
        self._scalars = SummaryWriter(str(self.folder.tensorboard), purge_step=purge)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        self.seconds += metrics.get("timing_s/step", 0.0) + metrics.get("timing_s/testing", 0.0)
        metrics[TIME] = self.seconds
        # JSON has no NaN
        values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self.lines.write({STEP: update} | values, sync=True)
        for name, value in metrics.items():
            self._scalars.add_scalar(name, value, update)
        self._scalars.flush()

    def close(self) -> None:
        if self._scalars is not None:
            self._scalars.close()


MOST_GROUPS = 64  # of an update
LONGEST = 500  # characters of a prompt


class GroupLog(Hook):
    """Rewards and advantages of every sample of each update's first groups, in groups.jsonl."""

    def __init__(self, folder: RunFolder, credited: Callable[[], list[float] | None]) -> None:
        """Args: ``credited`` gives the advantage of each sample of the batch that was learned from last."""
        self.lines, self.credited = Lines(folder.groups), credited
        self._batch: Rollouts | None = None

    def start(self, done: int) -> None:
        self.lines.begin(done)

    def observe(self, update: int, collected: Collected) -> None:
        """Remember a batch until it is learned from."""
        self._batch = collected if isinstance(collected, Rollouts) else None

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if self._batch is not None and len(self._batch):
            self.lines.write({"update": update, "groups": groups_of(self._batch, self.credited())})
        self._batch = None


def groups_of(batch: Rollouts, advantages: list[float] | None) -> list[dict[str, Any]]:
    """The first groups of a batch as plain data; None for numbers that are missing."""
    if advantages is None or len(advantages) != len(batch):
        advantages = [math.nan] * len(batch)
    rewards = batch.scores.reward.tolist()
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for row, group in enumerate(batch.group.tolist()):
        rows[group].append(row)
    groups = []
    for group, members in list(rows.items())[:MOST_GROUPS]:
        prompt = batch.prompts[members[0]]
        text = prompt.turns[-1].text
        groups.append(
            {
                "group": group, "uid": prompt.uid, "prompt": text[:LONGEST], "source": prompt.source,
                "samples": [int(batch.sample[row]) for row in members],
                "rewards": [None if batch.scores.missing[row] else short(rewards[row]) for row in members],
                "advantages": [short(advantages[row]) for row in members],
            }
        )  # fmt: skip
    return groups


class Timeline(Hook):
    """What each process did when during every update, in timeline.jsonl; and this one's memory among the metrics."""

    def __init__(self, folder: RunFolder, watch: Stopwatch, memory: PhaseMemory, *, local: bool) -> None:
        """Args: ``local`` says whether this process is the one that learns."""
        self.lines, self.watch, self.memory, self.local = Lines(folder.timeline), watch, memory, local

    def start(self, done: int) -> None:
        self.lines.begin(done)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        own, others = self.watch.take_spans(), self.watch.take_lanes()
        if update == 0:
            return
        if self.local:
            metrics |= self.memory.metrics()
        lanes = {"this process" if self.local else "controller": own, **dict(sorted(others.items()))}
        spans_by_lane = {name: [span for span in spans if span[0] != "step"] for name, spans in lanes.items()}
        begun = min((start for spans in spans_by_lane.values() for _, start, _ in spans), default=0.0)
        lanes_from = {  # spans that are too short to be seen are left out
            name: [[what, round(start - begun, 4), round(took, 4)] for what, start, took in spans if took >= 1e-4]
            for name, spans in spans_by_lane.items()
        }
        self.lines.write({"update": update, "lanes": lanes_from})


EPOCH = "training/epoch"


class Epochs(Hook):
    """Passes over the training prompts or records so far, those included that were sampled and left out."""

    def __init__(self, folder: RunFolder, config: RunConfig, items: Callable[[], int]) -> None:
        """Args: ``items`` are the prompts or records that there are."""
        self.folder, self.config, self.items = folder, config, items
        self.batches, self._counted = 0.0, 0  # taken so far, and in how many updates

    def start(self, done: int) -> None:
        """Go on where the run stood after ``done`` updates."""
        self.batches, self._counted = done * self.config.batches_per_update, done
        known = [row[EPOCH] for row in self.folder.read_metrics() if row[STEP] == done and row.get(EPOCH)]
        if known and done:
            self.batches = round(known[-1] * self.items() / self.config.data.train_batch_size)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if update == 0:
            return
        if update > self._counted:  # one whose validation is made up for has been counted
            self.batches += metrics.get("train/num_gen_batches", 1.0) * self.config.batches_per_update
            self._counted = update
        metrics[EPOCH] = self.batches * self.config.data.train_batch_size / max(self.items(), 1)


MOST_LINES = 1000  # of failures.jsonl by one process
PATIENCE = 10  # times the limit, where no reward is missing but all are equal


class NothingLearned(UserError):
    """Consecutive updates had no training signal."""


class Failures(Hook):
    """Observes every batch, and every update."""

    def __init__(self, folder: RunFolder, options: StepOptions, *, steps: int) -> None:
        """Args: ``steps`` is the number of updates of the run."""
        self.limit, self.steps = options.max_skipped_updates, steps
        self._empty: list[bool] = []  # consecutive updates without training signal: whether rewards were missing
        self._unvalidated = 0  # consecutive validations without any reward
        self._learned = False  # whether any update had a training signal
        self._update = 0
        self._last: Failure | None = None
        self._current: list[Failure] = []
        self._lines, self._written = Lines(folder.failures), 0
        self._traced = False  # whether an error with its traceback has been logged

    def start(self, done: int) -> None:
        self._learned = done > 0

    def observe(self, update: int, collected: Collected) -> None:
        """Record the missing rewards of a batch."""
        self._current = collected.failures if isinstance(collected, Rollouts) else []
        for failure in self._current:
            self._last = failure
            if failure.traceback and not self._traced:
                self._traced = True
                log.warning("first error of a reward, at update %d:\n%s", update, failure.traceback)
            if self._written < MOST_LINES:
                self._written += 1
                self._lines.write({"update": update} | vars(failure))

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if "val-aux/missing" in metrics:
            self._unvalidated = self._unvalidated + 1 if metrics["val-aux/missing"] == 1 else 0
            if self._unvalidated > self.limit:
                raise NothingLearned(
                    f"{self._unvalidated} validations in a row have no reward at all (trainer.max_skipped_updates="
                    f"{self.limit}); {self._advice()}"
                )
        if update == 0:
            return
        self._update = update
        if not (metrics.get("actor/empty_updates", 0.0) > 0 and "actor/loss" not in metrics):
            self._empty, self._learned = [], True
            return
        self._empty.append(bool(self._current))
        if sum(self._empty) > self.limit or len(self._empty) > PATIENCE * self.limit:
            raise NothingLearned(self._complaint(f"{len(self._empty)} updates in a row have"))

    def finish(self) -> None:
        if self._update == self.steps and not self._learned:
            raise NothingLearned(self._complaint("all updates have"))

    def _complaint(self, what: str) -> str:
        begin = f"{what} no training signal (trainer.max_skipped_updates={self.limit}): "
        if self._last is None:
            return (
                f"{begin}no reward is missing, but those of each prompt are all equal, all samples were rejected, or "
                "no network that is trained (model.networks) runs at the steps that are learned from; check "
                "critic/rewards and train/ in metrics.jsonl, or raise the limit"
            )
        why = " ".join(self._last.why.split())
        return f"{begin}rewards are missing, the last one for {self._last.prompt}: {why}; {self._advice()}"

    def _advice(self) -> str:
        log_file = f" (all failures are in {self._lines.file})" if self._written else ""
        return (
            f"fix the reward{log_file}, and run the same command again: it resumes from the last checkpoint, if there "
            "is one"
        )


SHARE = 0.02  # of a run's time that reports may take


class ReportWriter(Hook):
    """Writes report.html after validations, so seldom that a run is not slowed down."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._next = -1.0

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        begun = time.monotonic()
        if validation_reward(metrics) is None or begun < self._next:
            return
        try:
            write_report(self.folder)
        except UserError as error:
            log.warning("the report can't be written now: %s", error)
        self._next = begun + (time.monotonic() - begun) / SHARE


class SampleIndex(Hook):
    """Gathers what was written, after every update of which samples are kept and after every validation."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self.training, self.validation, self.folder = config.rollout.save, config.validation.save, folder

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if self.training is not None and update > 0 and (update - 1) % self.training.every == 0:
            write_index(self.folder.samples)
        if self.validation is not None and self.folder.validation(update).is_dir():
            write_index(self.folder.validation_samples)


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

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if update > self.done:
            self._ends = [*self._ends, self.clock()][-WINDOW - 1 :]
        else:
            self._ends = [self.clock()]  # the first validation is no update
        validation = _validation(metrics)
        self._validation = validation or self._validation
        parts = [f"update {update}/{self.total}"]  # most important first, since a narrow terminal cuts the line
        if (reward := metrics.get("critic/rewards/mean")) is not None:
            parts.append(f"reward {_number(reward)}")
        if len(self._ends) > 1:
            seconds = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
            parts += [f"{terminal.duration(seconds * (self.total - update))} left", f"{seconds:.1f} s/update"]
        text = " | ".join(filter(None, [*parts, self._validation]))
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

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _validation(metrics: dict[str, float]) -> str:
    """Result of a validation, such as ``validation 0.912, maj@8 0.934 (exact 0.804)``; "" if there was none."""
    reward, exact = validation_reward(metrics), [v for k, v in metrics.items() if EXACT.fullmatch(k)]
    if reward is None:
        return ""
    text = f"validation {_number(reward)}"
    votes = [(match[1], v) for k, v in metrics.items() if (match := VOTE.fullmatch(k))]
    if len({size for size, _ in votes}) == 1:
        text += f", {votes[0][0]} {_number(sum(v for _, v in votes) / len(votes))}"
    return f"{text} (exact {_number(sum(exact) / len(exact))})" if exact else text


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "missing"
