"""Alarms and samples of validations for trackers: read from the run's folder, in formats that trackers show."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from burnish.alarms.record import read_alarms
from burnish.utils.json_text import parse_json
from burnish.utils.reading import read_file
from burnish.utils.video import read_clip

LARGEST = 64 << 20  # bytes of the samples of a validation
LARGEST_FILE = 32 << 20  # bytes of a picture, clip or sound that is sent
FRAMES, LONGEST_SIDE = 64, 512  # of a GIF: frames, and pixels of the longer side

Kind = Literal["picture", "clip", "sound"]
KINDS: dict[str, Kind] = {".png": "picture", ".mp4": "clip", ".webp": "clip", ".wav": "sound"}  # as validations write


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample of a validation."""

    prompt: str
    response: str | None  # None for what was generated as a file
    file: Path | None
    prompt_files: Sequence[Path]  # pictures and sounds of the prompt
    score: float | None
    note: str

    @property
    def output(self) -> str:
        """The response, or the name of the file."""
        return self.response or "" if self.file is None else self.file.name

    @property
    def caption(self) -> str:
        """One line below a picture."""
        return f"{'missing' if self.score is None else f'{self.score:.4g}'} | {self.prompt}"


@dataclass(frozen=True, kw_only=True)
class AlarmEvent:
    """An alarm that was raised, or one that is over."""

    update: int
    name: str
    reason: str  # why it was raised
    over: bool

    @property
    def title(self) -> str:
        """One line."""
        return f"alarm {self.name} is over" if self.over else f"alarm {self.name}"

    @property
    def text(self) -> str:
        """All of it."""
        return f"over since update {self.update}; raised because {self.reason}" if self.over else self.reason


def read_alarm_events(file: Path, update: int) -> list[AlarmEvent]:
    """Alarms that were raised at an update, and those that were over."""
    events = []
    for raised in read_alarms(file):
        for at, over in ((raised.update, False), (raised.over, True)):
            if at == update:
                events.append(AlarmEvent(update=update, name=raised.name, reason=raised.text, over=over))
    return events


def read_samples(folder: Path, most: int) -> list[Sample]:
    """The first sample of each of the first prompts of a validation; none if nothing was kept.

    Args:
        folder: of the validation.
        most: prompts.
    """
    if not (folder / "samples.jsonl").is_file() or not most:
        return []
    samples: dict[int, Sample] = {}
    for line in read_file(folder / "samples.jsonl", LARGEST).splitlines():
        record = parse_json(line)
        prompt = int(record["index"])
        if prompt not in samples and len(samples) < most:
            samples[prompt] = _sample(folder / "pictures", record)
    return list(samples.values())


def _sample(media: Path, record: dict[str, Any]) -> Sample:
    name, score = record.get("file"), record.get("reward")
    prompt_files = (_media_file(media, name) for name in record.get("images") or ())
    return Sample(
        prompt=str(record["prompt"]),
        response=str(record["response"]) if "response" in record else None,
        file=_media_file(media, name) if isinstance(name, str) else None,
        prompt_files=[file for file in prompt_files if file is not None],
        score=float(score) if isinstance(score, int | float) and math.isfinite(score) else None,
        note=str(record.get("note") or ""),
    )


def _media_file(media: Path, name: str) -> Path | None:
    """A file that the validation kept, if it is there and not too large; never one of another folder."""
    file = media / Path(name).name
    return file if file.is_file() and not file.is_symlink() and file.stat().st_size <= LARGEST_FILE else None


def kind_of(file: Path) -> Kind:
    """What a file of a validation holds."""
    return KINDS[file.suffix]


def gif(file: Path) -> bytes:
    """A clip as an animated GIF, which every tracker plays."""
    if file.suffix == ".mp4":
        arrays, rate, _ = read_clip(file.read_bytes(), FRAMES)
        frames = [Image.fromarray(array) for array in arrays]
    else:
        with Image.open(file) as webp:
            frames, rate = [], 1000 / (webp.info.get("duration") or 100)
            for index in range(min(getattr(webp, "n_frames", 1), FRAMES)):
                webp.seek(index)
                frames.append(webp.convert("RGB"))
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
