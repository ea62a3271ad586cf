"""What the board shows of training besides metrics: rewards and advantages by group, and who did what when."""

from __future__ import annotations

import json
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from burnish.config.run_folder import RunFolder
from burnish.hooks import Hook
from burnish.training.profiling import PhaseMemory
from burnish.types.rollout import Collected, Rollouts
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.reading import read_file
from burnish.utils.timer import Span, Stopwatch

log = logging.getLogger(__name__)

LARGEST = 48 << 20  # bytes of a file, from which on nothing is added
MOST_GROUPS = 64  # of an update
LONGEST = 500  # characters of a prompt
DIGITS = 5


class Lines:
    """A file with a JSON object per update, which stays small."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._opened: IO[str] | None = None
        self._full = False

    def begin(self, done: int) -> None:
        """Drop what comes after ``done`` updates, which will be done again."""
        if self.file.is_symlink():  # the folder may come from somebody else, and the file is written below
            raise UserError(f"{self.file} is a link to elsewhere; remove it")
        with writing(self.file):
            if self.file.exists():
                kept = [line for line in read_file(self.file).splitlines() if _update(line) <= done]
                write_atomically(self.file, b"".join(line + b"\n" for line in kept))
            self._opened = self.file.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Add an object."""
        if self._opened is None or self._full:
            return
        if self._opened.tell() > LARGEST:
            self._full = True
            log.warning("%s has reached %d MB; no more is recorded there", self.file, LARGEST >> 20)
            return
        with writing(self.file):
            self._opened.write(json.dumps(record, allow_nan=False) + "\n")
            self._opened.flush()

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            with writing(self.file):
                self._opened.close()


def _update(line: bytes) -> float:
    """The update of a line; infinity for a truncated one."""
    try:
        return float(parse_json(line)["update"])
    except (ValueError, KeyError, TypeError):
        return math.inf


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
        if update > 0 and self._batch is not None and len(self._batch):
            self.lines.write({"update": update, "groups": groups_of(self._batch, self.credited())})
        self._batch = None

    def close(self) -> None:
        self.lines.close()


def groups_of(batch: Rollouts, advantages: list[float] | None) -> list[dict[str, Any]]:
    """The first groups of a batch as plain data; None for numbers that are missing."""
    if advantages is None or len(advantages) != len(batch):
        advantages = [math.nan] * len(batch)
    rewards = batch.scores.reward.tolist()
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for row, group in enumerate(batch.group.tolist()):
        rows[group].append(row)
    found = []
    for group, some in list(rows.items())[:MOST_GROUPS]:
        prompt = batch.prompts[some[0]]
        text = prompt.turns[-1].text if prompt.messages else prompt.text
        found.append(
            {
                "group": group, "uid": prompt.uid, "prompt": text[:LONGEST], "source": prompt.source,
                "samples": [int(batch.sample[row]) for row in some],
                "rewards": [None if batch.scores.missing[row] else _short(rewards[row]) for row in some],
                "advantages": [_short(advantages[row]) for row in some],
            }
        )  # fmt: skip
    return found


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


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
        found = {name: [span for span in spans if span[0] != "step"] for name, spans in lanes.items()}
        begun = min((start for spans in found.values() for _, start, _ in spans), default=0.0)
        self.lines.write({"update": update, "lanes": {name: _from(spans, begun) for name, spans in found.items()}})

    def close(self) -> None:
        self.lines.close()


def _from(spans: list[Span], begun: float) -> list[list[Any]]:
    """Spans with their beginnings in seconds after that of the first one; those too short to be seen are left out."""
    return [[name, round(start - begun, 4), round(took, 4)] for name, start, took in spans if took >= 1e-4]
