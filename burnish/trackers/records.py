"""What trackers are sent of a run's folder: samples of validations, alarms, and metrics under the names they show."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from burnish.alarms.record import read_alarms
from burnish.report.media import frames_of
from burnish.report.samples import Sample, read_samples

LARGEST = 32 << 20  # bytes of a picture, clip or sound that is sent
FRAMES, LONGEST_SIDE = 64, 512  # of a GIF: frames, and pixels of the longer side

Kind = Literal["picture", "clip", "sound"]
KINDS: dict[str, Kind] = {".png": "picture", ".mp4": "clip", ".webp": "clip", ".wav": "sound"}  # as validations write


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
    arrays, rate = frames_of(file, FRAMES)
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


# names of metrics for those who know another project's

Names = Literal["verl", "lightrft"]

# our name, as a pattern, and LightRFT's; several of ours under one name are averaged, as those of data sources are
LIGHTRFT: list[tuple[str, str]] = [
    (r"actor/(pg_loss|policy_loss)", "train/policy_loss"),
    (r"actor/kl_loss", "train/kl"),
    (r"actor/lr", "train/actor_lr"),
    (r"actor/ptx_loss", "train/ptx_loss"),
    (r"actor/entropy", "train/entropy"),
    (r"critic/vf_loss", "train/critic_loss"),
    (r"critic/vpred_mean", "train/values"),
    (r"critic/lr", "train/critic_lr"),
    (r"critic/rewards/(mean|max|min)", r"train/step_reward_\1"),
    (r"critic/format/mean", "train/format_reward_mean"),
    (r"critic/(exact|numeric|accuracy)/mean", "train/accuracy_reward_mean"),
    (r"critic/advantages/(mean|max|min)", r"train/advantages_\1"),
    (r"critic/returns/mean", "train/returns_mean"),
    (r"response_length/mean", "train/response_length_mean"),
    (r"response/reflections/mean", "trajectory/reflection_pattern_score_mean"),
    (r"val-core/[^/]+/reward/mean@\d+", "eval/reward_mean"),
    (r"val-aux/[^/]+/reward/std@\d+", "eval/reward_std"),
    (r"val-aux/[^/]+/format/mean@\d+", "eval/format_reward"),
    (r"val-aux/[^/]+/(exact|numeric|accuracy)/mean@\d+", "eval/accuracy_reward"),
    (r"val-aux/response_length/mean", "eval/response_length"),
    (r"val-aux/num_samples", "eval/num_samples"),
]


def renamed(step: int, values: Mapping[str, float], names: Names) -> dict[str, float]:
    """Metrics of an update under other names; those without a counterpart keep theirs."""
    if names == "verl":
        return dict(values)
    grouped: defaultdict[str, list[float]] = defaultdict(list)
    for name, value in values.items():
        grouped[_lightrft(name)].append(value)
    means = {name: sum(group) / len(group) for name, group in grouped.items()}
    means["train/global_step"] = float(step)
    if any(name.startswith("eval/") for name in means):
        means["eval/global_step"] = float(step)
    return means


def _lightrft(name: str) -> str:
    for pattern, other in LIGHTRFT:
        if (match := re.fullmatch(pattern, name)) is not None:
            return match.expand(other)
    return name
