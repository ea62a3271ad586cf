"""Trackers of a run: each follows metrics.jsonl, is sent samples and alarms, and catches up after a restart."""

from __future__ import annotations

import io
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from PIL import Image

from burnish.alarms.record import Raised, read_alarms
from burnish.config import RunConfig, to_dict
from burnish.config.run_folder import STEP, RunFolder
from burnish.hooks.beside import Beside, Follower
from burnish.report.media import read_medium
from burnish.report.samples import Sample, read_samples
from burnish.utils.addresses import one_line, redacted
from burnish.utils.disk import write_atomically
from burnish.utils.json_text import parse_json

log = logging.getLogger(__name__)

QUIET = {  # the terminal is the run's
    "WANDB_SILENT": "true", "GRADIO_ANALYTICS_ENABLED": "False", "MLFLOW_DISABLE_TELEMETRY": "true",
}  # fmt: skip


class Delivery(Follower):
    """One tracker of a run.

    Attributes:
        place: folder for what the tracker's library writes on this machine.
        title: of the run.
        options: of the tracker's section.
        config: every option of the run.
        id: by which the tracker knows the run; None where it has not seen it.
        wait: seconds at the end, where the library has such a limit.
    """

    def __init__(self, kind: str, config: RunConfig, folder: RunFolder) -> None:
        """Args: ``kind`` of tracker, as its section is called. Nothing is opened before there is something to send."""
        super().__init__(f"trackers.{kind}", folder)
        section, run = getattr(config.trackers, kind), folder.path.absolute()
        self.kind, self.place = kind, run / "trackers" / kind
        self.options: dict[str, Any] = {} if isinstance(section, bool) else asdict(section)
        self.title = self.options.get("name") or run.name
        self.config, self.samples, self.wait = to_dict(config), config.trackers.samples, config.trackers.wait
        self.id: str | None = None
        self._library: Any = None
        self._lines: IO[bytes]  # of metrics.jsonl, from which on nothing is sent yet
        self._progress = folder.trackers / f"{kind}.json"

    def start(self) -> None:
        os.environ.update(QUIET)
        self.place.mkdir(parents=True, exist_ok=True)
        with suppress(OSError, ValueError, KeyError, TypeError):  # none, or not written by a run
            progress = parse_json(self._progress.read_bytes())
            self.id, self.delivered = str(progress["id"]), int(progress["step"])
        super().start()

    def left(self) -> str:
        missing = sum(self.delivered < row[STEP] <= self.upto for row in self.folder.read_metrics())
        return f"{missing} updates are not sent" if missing else "it was not closed"

    def work(self, *, last: bool) -> None:
        """Send updates in their order; a tracker's steps only rise."""
        try:
            if self._library is None:
                self._open()
            while self.delivered < self.upto and (line := self._lines.readline()):
                row = parse_json(line)
                if row[STEP] > self.delivered:
                    self._send(row.pop(STEP), row)
            if last:
                self._library.finish(self.outcome)
        except BaseException:
            self._library = None  # opened again
            raise

    def _open(self) -> None:
        from burnish.hooks.libraries import LIBRARIES  # seconds

        self._library = LIBRARIES[self.kind](self)
        self._lines = self.folder.metrics.open("rb")
        self._write_progress()
        if self._library.url:
            log.info("trackers.%s: %s", self.kind, redacted(self._library.url))

    def _send(self, update: int, metrics: Mapping[str, Any]) -> None:
        """An update with its samples and alarms."""
        values = {name: v for name, v in metrics.items() if v is not None and math.isfinite(v)}
        self._library.log(update, values | {STEP: float(update)})
        try:
            if samples := first_samples(self.folder.validation(update), self.samples):
                self._library.log_samples(update, samples)
        except Exception as error:  # of one file, which would fail again
            self.warn(f"samples of update {update}: {one_line(error)}")
        for alarm in alarms_at(self.folder.alarms, update):
            self._library.log_alarm(alarm)
        self.delivered = update
        self._write_progress()

    def _write_progress(self) -> None:
        self.id = self._library.id
        write_atomically(self._progress, json.dumps({"id": self.id, "step": self.delivered}).encode())


class Trackers(Beside):
    """Stands behind ``MetricsLog``, ``Validation`` and ``Alarms``, whose files trackers read."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, unfinished: Callable[[], bool], *, resumed_at: int | None
    ) -> None:
        """Choose them.

        Args:
            config: of the run.
            folder: of the run.
            unfinished: whether a stop cancelled the last validation, so that its update comes again.
            resumed_at: last update whose metrics are recorded; None for a new run.
        """
        kinds = [*config.trackers.libraries(), *(["tensorboard"] if config.trackers.tensorboard else [])]
        deliveries = [Delivery(kind, config, folder) for kind in kinds]
        super().__init__(deliveries, folder, wait=config.trackers.wait, option="trackers.wait")
        self.unfinished, self.steps = unfinished, config.steps
        self.last = -1 if resumed_at is None else resumed_at

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if not self.unfinished():
            self.last = update
            self.tell()

    def tell(self) -> None:
        for delivery in self.followers:
            delivery.tell(self.last)

    def finish(self) -> None:
        self.outcome = "finished" if self.last >= self.steps else "stopped"


LARGEST = 32 << 20  # bytes of an image, clip or sound that is sent
FRAMES, LONGEST_SIDE = 64, 512  # of a GIF: frames, and pixels of the longer side


def alarms_at(file: Path, update: int) -> list[Raised]:
    """Alarms that were raised at an update, as they were then; and those that were over, whose text says so."""
    alarms = read_alarms(file)
    raised = [replace(one, over=None) for one in alarms if one.update == update]
    over = [one for one in alarms if one.over == update]
    return raised + [
        replace(one, update=update, text=f"over since update {update}; raised because {one.text}") for one in over
    ]


def title_of(alarm: Raised) -> str:
    """One line about an alarm."""
    return f"alarm {alarm.name}{'' if alarm.over is None else ' is over'}"


def first_samples(validation: Path, most: int) -> list[Sample]:
    """The first sample of each of the first prompts of a validation; none if nothing was kept."""
    firsts: dict[int, Sample] = {}
    for (index, _), sample in read_samples(validation).items():
        firsts.setdefault(index, sample)
    return list(firsts.values())[:most]


def file_of(sample: Sample) -> Path | None:
    """The file that was generated; None for a response."""
    return next(iter(sendable([sample.image])), None) if sample.response is None else None


def sendable(files: Sequence[Path]) -> list[Path]:
    """Those that are there and not too large."""
    return [file for file in files if file.is_file() and file.stat().st_size <= LARGEST]


def output_of(sample: Sample) -> str:
    """The response, or the name of the file that was generated."""
    return sample.image.name if sample.response is None else sample.response


def gif(file: Path) -> bytes:
    """A clip as an animated GIF, which every tracker plays."""
    arrays, rate, _ = read_medium(file, FRAMES)
    frames = [Image.fromarray(array) for array in arrays]
    for frame in frames:
        frame.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = io.BytesIO()
    frames[0].save(
        buffer, format="GIF", save_all=True, append_images=frames[1:], duration=round(1000 / rate), loop=0
    )  # fmt: skip
    return buffer.getvalue()


def playable(file: Path, folder: Path) -> Path:
    """A clip as a file that browsers play in a video player: itself, or else a GIF in a folder."""
    if file.suffix == ".mp4":
        return file
    target = folder / f"{file.parent.parent.name}-{file.stem}.gif"
    target.write_bytes(gif(file))
    return target
