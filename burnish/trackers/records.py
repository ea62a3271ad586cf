"""What trackers are sent of a run's folder: samples of validations, alarms, and metrics under the names they show."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image

from burnish.alarms.record import read_alarms
from burnish.report.media import read_medium
from burnish.report.samples import Sample, read_samples

LARGEST = 32 << 20  # bytes of a picture, clip or sound that is sent
FRAMES, LONGEST_SIDE = 64, 512  # of a GIF: frames, and pixels of the longer side

Kind = Literal["picture", "clip", "sound"]
KINDS: dict[str, Kind] = {".png": "picture", ".mp4": "clip", ".webp": "clip", ".wav": "sound"}  # as validations write


class AlarmEvent(NamedTuple):
    """An alarm that was raised, or one that is over."""

    update: int
    name: str
    title: str
    text: str
    over: bool


def read_alarm_events(file: Path, update: int) -> list[AlarmEvent]:
    """Alarms that were raised at an update, and those that were over."""
    alarms = read_alarms(file)
    return [
        *(AlarmEvent(update, one.name, f"alarm {one.name}", one.text, False) for one in alarms if one.update == update),
        *(
            AlarmEvent(
                update, one.name, f"alarm {one.name} is over",
                f"over since update {update}; raised because {one.text}", True,
            )
            for one in alarms if one.over == update
        ),
    ]  # fmt: skip


def first_samples(validation: Path, most: int) -> list[Sample]:
    """The first sample of each of the first prompts of a validation; none if nothing was kept."""
    firsts: dict[int, Sample] = {}
    for (index, _), sample in read_samples(validation).items():
        firsts.setdefault(index, sample)
    return list(firsts.values())[:most]


def file_of(sample: Sample) -> Path | None:
    """The file that was generated; None for a response."""
    return next(iter(sendable([sample.picture])), None) if sample.response is None else None


def sendable(files: Sequence[Path]) -> list[Path]:
    """Those that are there and not too large."""
    return [file for file in files if file.is_file() and file.stat().st_size <= LARGEST]


def output_of(sample: Sample) -> str:
    """The response, or the name of the file that was generated."""
    return sample.picture.name if sample.response is None else sample.response


def caption_of(sample: Sample) -> str:
    """One line below a picture."""
    return f"{'missing' if sample.reward is None else f'{sample.reward:.4g}'} | {sample.prompt}"


def kind_of(file: Path) -> Kind:
    """What a file of a validation holds."""
    return KINDS[file.suffix]


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
