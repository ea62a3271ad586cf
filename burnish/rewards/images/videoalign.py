"""VideoAlign, or VideoReward (Liu et al. 2025, arXiv:2501.13918): three scores of a clip, by Qwen2-VL with a head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from burnish.options import Finite
from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.headed.base import HeadedReward, verdict
from burnish.rewards.headed.checkpoint import Headed, weight_files
from burnish.rewards.headed.reading import Question
from burnish.rewards.images.learned import Source, refusal
from burnish.types.clips import Clip, Kind
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.weights import complaints_about

if TYPE_CHECKING:
    import numpy as np

    from burnish.types.prompt import Prompt

ABOUT = "model_config.json"
COMPLETE, ADAPTER, REST = "model.pth", "adapter_model.safetensors", "non_lora_state_dict.pth"
NAMES = ("vq", "mq", "ta")
FEWEST, MOST = 4, 768  # frames, as the published preprocessing has them
SMALLEST = 128 * 28 * 28  # pixels of a frame


@register("flow reward", "videoalign")
class VideoAlign(HeadedReward):
    """VideoAlign: visual quality (vq), motion quality (mq) and text alignment (ta) of a clip, and their sum."""

    tokens: ClassVar[tuple[str, ...]] = ("<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>")
    reads: ClassVar[tuple[Kind, ...]] = ("clip",)

    path: str
    """Directory, or org/name on the Hugging Face hub, of the published checkpoint: model_config.json, and checkpoint-N
    with its weights."""
    base: str = "Qwen/Qwen2-VL-2B-Instruct"
    """Directory, or org/name on the hub, of the model that it was trained on: its configuration and tokenizer; and its
    weights, where the checkpoint has an adapter."""
    template: str
    """Text file with the instruction of the checkpoint's own repository, with {prompt} and the three tokens where it
    has them."""
    dimensions: dict[Literal["vq", "mq", "ta"], Finite] | None = None
    """Weights of the three scores in the sum, which are all logged; null takes 1 each."""

    @model_validator(mode="after")
    def _dimensions_count(self) -> Self:
        if self.dimensions is not None and not any(self.dimensions.values()):
            raise ValueError("dimensions has no weight but 0; give one a weight, or leave it out")
        return self

    @property
    def templates(self) -> tuple[tuple[str, str], ...]:
        return (("template", self.template),)

    def sources(self) -> tuple[Source, ...]:
        return Source(index=ABOUT, files=(ABOUT, "checkpoint-*/*")), Source("base", "base_revision")

    def complaint(self, source: Source, place: Path) -> str:
        why = super().complaint(source, place)
        if why:
            return why
        if source.option == "path":
            return refusal(settings, place)
        adapted = len(self.files(self.folder(self.sources()[0]))) > 1
        return "; ".join(complaints_about(place)) if adapted else ""

    def files(self, place: Path) -> tuple[Path, ...]:
        folder = _checkpoint(place)
        if (folder / ADAPTER).is_file():
            rest = folder / REST
            if not rest.is_file():
                raise UserError(f"{folder} has {ADAPTER} but no {REST}, with the vision tower and the head; fetch it")
            return folder / ADAPTER, rest
        return weight_files(folder, (COMPLETE,))

    def adapter_alpha(self, place: Path) -> float | None:
        if self.alpha is not None:
            return self.alpha
        for file in (_checkpoint(place) / "adapter_config.json", _about(place)):
            told = read_object(file) if file.is_file() else {}
            found = told.get("lora_alpha") or _section(told, "peft_lora_config").get("lora_alpha")
            if isinstance(found, int | float) and found > 0:
                return float(found)
        return None

    def score(self, images: Sequence[Clip], prompts: Sequence[Prompt]) -> list[Verdict]:
        (template,) = self.questions()
        about = settings(self.folder(self.sources()[0]))

        def question(loaded: Headed, row: int) -> Question:
            frames = sampled(images[row], fps=about.fps, frames=about.frames)
            shown = [loaded.reader.geometry.clip(frames, SMALLEST, about.pixels)]
            return loaded.reader.question(template, prompts[row].text, shown, video=True)

        # dimension i is read at token i
        found = [values.diagonal().tolist() for values in self.read(len(images), question)]
        return [
            self._verdict([(x - mean) / std for x, mean, std in zip(row, about.means, about.stds, strict=True)])
            for row in found
        ]

    def _verdict(self, values: Sequence[float]) -> Verdict:
        weights = [1.0] * 3 if self.dimensions is None else [self.dimensions.get(name, 0.0) for name in _literal()]
        value = math.fsum(weight * one for weight, one in zip(weights, values, strict=True))
        return verdict(value, **dict(zip(NAMES, values, strict=True)))


def sampled(clip: Clip, *, fps: float, frames: int | None = None) -> np.ndarray:
    """Frames of a clip, N a second or N in all and an even number of them, evenly spaced from first to last."""
    import numpy as np

    total = len(clip.frames)
    most = max(min(MOST, total) // 2 * 2, 1)
    wanted = frames if frames is not None else min(max(total / clip.fps * fps, FEWEST), most)
    count = min(max(round(wanted / 2) * 2, 1), total)
    chosen: np.ndarray = clip.frames[np.linspace(0, total - 1, count).round().astype(int)]
    return chosen


def _literal() -> tuple[Literal["vq"], Literal["mq"], Literal["ta"]]:
    return "vq", "mq", "ta"


def _about(place: Path) -> Path:
    """The file of the checkpoint's settings: beside the folders of its steps."""
    return next((one for one in (place / ABOUT, place.parent / ABOUT) if one.is_file()), place / ABOUT)


def _checkpoint(place: Path) -> Path:
    """The folder of weights: the one given, or the last checkpoint-N in it."""
    found = sorted(place.glob("checkpoint-*"), key=lambda one: (len(one.name), one.name)) if place.is_dir() else []
    return found[-1] if found else place


def _section(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = told.get(name)
    return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True)
class Settings:
    """What a checkpoint was trained with, and the statistics of its scores on its authors' data."""

    means: tuple[float, ...]
    stds: tuple[float, ...]
    fps: float
    frames: int | None  # of every clip, whatever it lasts
    pixels: int  # of a frame, at most


def settings(place: Path) -> Settings:
    """By the checkpoint's model_config.json.

    Raises:
        UserError: it says too little, or something that is not done here.
    """
    file = _about(place)
    told = read_object(file) if file.is_file() else {}
    model, data, norm = (_section(told, f"{name}_config") for name in ("model", "data", "inference"))
    means, stds = ([_number(norm, f"{name.upper()}_{what}", file) for name in NAMES] for what in ("mean", "std"))
    if min(stds) <= 0:
        raise UserError(f"{file} has a standard deviation that is not above 0; fetch the checkpoint again")
    if model.get("use_special_tokens") is False or data.get("sample_type", "uniform") != "uniform":
        raise UserError(
            f"{file} is of a checkpoint that reads no tokens of its own, or samples frames otherwise than evenly; give "
            "VideoReward's published one, which does neither"
        )
    fps, pixels, frames = _number(data, "fps", file), _number(data, "max_frame_pixels", file), data.get("num_frames")
    if fps <= 0 or pixels < 1 or not (frames is None or (isinstance(frames, int | float) and frames >= 1)):
        raise UserError(f"{file} has fps, max_frame_pixels or num_frames that no clip can have; fetch it again")
    return Settings(tuple(means), tuple(stds), fps, None if frames is None else int(frames), int(pixels))


def _number(told: Mapping[str, Any], name: str, file: Path) -> float:
    found = told.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool) or not math.isfinite(found):
        raise UserError(
            f"{file} lacks {name}, by which clips are read and scores standardised; fetch the checkpoint again"
        )
    return float(found)
