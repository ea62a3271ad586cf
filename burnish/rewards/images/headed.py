"""Rewards by a Qwen2-VL with heads: HPSv3, EditReward and VideoAlign."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator

from burnish.options import Finite
from burnish.registry import register
from burnish.rewards.base import Score
from burnish.rewards.networks.headed import (
    ABOUT,
    ADAPTER,
    COMPLETE,
    HPSV3,
    REST,
    Headed,
    HeadedReward,
    Question,
    score_with,
)
from burnish.rewards.networks.loading import Source, batches, some_counts, weight_files
from burnish.types.samples import Clip, Kind
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.weights import complaints_about

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt

NAMES: tuple[Literal["vq", "mq", "ta"], ...] = ("vq", "mq", "ta")


@register("flow reward", "hpsv3")
class HPSv3(HeadedReward):
    """HPSv3 (Ma et al. 2025, arXiv:2508.03789): what people prefer, as the mean of a normal distribution, about 0 to
    15, by Qwen2-VL-7B with a head; its std is logged."""

    published: ClassVar[tuple[str, ...]] = (HPSV3,)

    path: str = "MizzenAI/HPSv3"
    """Directory or file, or org/name on the Hugging Face hub, of the weights: HPSv3.safetensors."""
    template: str
    """Text file with the instruction of the checkpoint's own repository, with {prompt} and <|Reward|> where it has
    them; copies of it differ in line breaks, which change the score."""

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Score]:
        (template,) = self.questions()

        def question(loaded: Headed, row: int) -> Question:
            return loaded.question(template, prompts[row].text, [loaded.geometry.image(images[row])])

        values = self.read(len(images), question)
        return [score_with(float(row[0, 0]), uncertainty=float(row[0, 1])) for row in values]

    def differentiable(self, images: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        import torch

        (template,) = self.questions()
        loaded, values = self.load(), []
        for rows in batches(range(len(images)), self.batch_size):
            shown = [loaded.geometry.tensor(images[row].to(self.device)) for row in rows]
            questions = [loaded.question(template, prompts[row].text, [p]) for row, p in zip(rows, shown, strict=True)]
            values.append(loaded.outputs(questions)[:, 0, 0])
        return torch.cat(values).to(images.device)


@register("flow reward", "editreward")
class EditReward(HeadedReward):
    """EditReward (Wu et al. 2025, arXiv:2509.26346): whether the instruction of an edit was followed, and how good the
    image is, by Qwen2.5-VL with two heads; one question for each."""

    family: ClassVar[str] = "qwen2_5_vl"
    heads: ClassVar[tuple[str, ...]] = ("rm_heads.head_0.", "rm_heads.head_1.")

    path: str
    """Directory or file of the weights."""
    base: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    """Directory, or org/name on the hub, of the model that it was trained on: its configuration and tokenizer; and its
    weights, where the checkpoint has an adapter."""
    template: tuple[str, str]
    """Text files with the two questions of the checkpoint's own repository, that of head_0 first, each with {prompt}
    and <|Reward|> where it has them."""
    pool: Literal["mean", "min", "sum"] = "mean"
    """How the means of the two heads become one value."""

    def unfit(self, prompt: Prompt) -> str:
        return "" if prompt.images else "it has no image, with which the edit could be compared"

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Score]:
        import numpy as np

        by_head = []
        for head, template in enumerate(self.questions()):

            def question(loaded: Headed, row: int, template: str = template) -> Question:
                sources = [np.asarray(media.image()) for media in prompts[row].images]
                shown = [loaded.geometry.image(image) for image in (*sources, images[row])]
                return loaded.question(template, prompts[row].text, shown)

            by_head.append([values[0].tolist() for values in self.read(len(images), question, head)])
        scores = []
        for (one, first), (other, second) in zip(*by_head, strict=True):
            value = min(one, other) if self.pool == "min" else (one + other) / (2 if self.pool == "mean" else 1)
            scores.append(score_with(value, head_0=one, head_1=other, uncertainty=(first + second) / 2))
        return scores


@register("flow reward", "videoalign")
class VideoAlign(HeadedReward):
    """VideoAlign, or VideoReward (Liu et al. 2025, arXiv:2501.13918): visual quality (vq), motion quality (mq) and text
    alignment (ta) of a clip, and their sum, by Qwen2-VL with a head."""

    tokens: ClassVar[tuple[str, ...]] = ("<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>")
    published: ClassVar[tuple[str, ...]] = (ABOUT, "checkpoint-*/*")
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
    dimensions: Annotated[dict[Literal["vq", "mq", "ta"], Finite], AfterValidator(some_counts)] | None = None
    """Weights of the three scores in the sum, which are all logged; null takes 1 each."""

    def sources(self) -> tuple[Source, ...]:
        return super().sources()[0], Source("base", complaint=self.base_complaint)

    def base_complaint(self, place: Path) -> str:
        why = super().base_complaint(place)
        adapted = len(self.files(self.folder())) > 1  # it changes the base's weights
        return why or ("; ".join(complaints_about(place)) if adapted else "")

    def files(self, place: Path) -> tuple[Path, ...]:
        settings(place)
        folder = _checkpoint(place)
        if not (folder / ADAPTER).is_file():
            return weight_files(folder, (COMPLETE,))
        if not (folder / REST).is_file():
            raise UserError(f"{folder} has {ADAPTER} but no {REST}, with the vision tower and the head; fetch it")
        return folder / ADAPTER, folder / REST

    def adapter_alpha(self, place: Path) -> float | None:
        for file in (_checkpoint(place) / "adapter_config.json", _about(place)):
            settings = read_object(file) if file.is_file() else {}
            alpha = self.alpha or settings.get("lora_alpha") or settings.get("peft_lora_config", {}).get("lora_alpha")
            if alpha:
                return float(alpha)
        return None

    def score(self, images: Sequence[Clip], prompts: Sequence[Prompt]) -> list[Score]:
        (template,) = self.questions()
        about = settings(self.folder())

        def question(loaded: Headed, row: int) -> Question:
            frames = sampled(images[row], fps=about.fps, frames=about.frames)
            shown = [loaded.geometry.clip(frames, 128 * 28 * 28, about.pixels)]
            return loaded.question(template, prompts[row].text, shown, video=True)

        # dimension i is read at token i
        raw = [values.diagonal().tolist() for values in self.read(len(images), question)]
        return [
            self._score([(x - mean) / std for x, mean, std in zip(row, about.means, about.stds, strict=True)])
            for row in raw
        ]

    def _score(self, values: Sequence[float]) -> Score:
        named = dict(zip(NAMES, values, strict=True))
        weights = dict.fromkeys(NAMES, 1.0) if self.dimensions is None else self.dimensions
        return score_with(math.fsum(weight * named[name] for name, weight in weights.items()), **named)


def sampled(clip: Clip, *, fps: float, frames: int | None = None) -> np.ndarray:
    """Frames of a clip, N a second or N in all and an even number of them, evenly spaced from first to last.

    By the second there are at least 4 and at most 768, as the published preprocessing has them.
    """
    import numpy as np

    total = len(clip.frames)
    most = max(min(768, total) // 2 * 2, 1)
    wanted = frames if frames is not None else min(max(total / clip.fps * fps, 4), most)
    count = min(max(round(wanted / 2) * 2, 1), total)
    return clip.frames[np.linspace(0, total - 1, count).round().astype(int)]  # type: ignore[no-any-return]


def _about(place: Path) -> Path:
    """The file of the checkpoint's settings: beside the folders of its steps."""
    return next((file for file in (place / ABOUT, place.parent / ABOUT) if file.is_file()), place / ABOUT)


def _checkpoint(place: Path) -> Path:
    """The folder of weights: the one given, or the last checkpoint-N in it."""
    steps = sorted(place.glob("checkpoint-*"), key=lambda folder: (len(folder.name), folder.name))
    return steps[-1] if steps else place


@dataclass(frozen=True)
class Settings:
    """What a checkpoint was trained with, and the statistics of its scores on its authors' data."""

    means: Sequence[float]
    stds: Sequence[float]
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
    data, norm = told.get("data_config", {}), told.get("inference_config", {})
    if (
        told.get("model_config", {}).get("use_special_tokens") is False
        or data.get("sample_type", "uniform") != "uniform"
    ):
        raise UserError(
            f"{file} is of a checkpoint that reads no tokens of its own, or samples frames otherwise than evenly; give "
            "VideoReward's published one, which does neither"
        )
    numbers = {name: data.get(name) for name in ("fps", "max_frame_pixels")}
    numbers |= {
        f"{name.upper()}_{what}": norm.get(f"{name.upper()}_{what}") for name in NAMES for what in ("mean", "std")
    }
    if lacking := [name for name, value in numbers.items() if not isinstance(value, int | float)]:
        raise UserError(
            f"{file} lacks {lacking[0]}, by which clips are read and scores standardised; fetch the checkpoint again"
        )
    means, stds = ([float(numbers[f"{name.upper()}_{what}"]) for name in NAMES] for what in ("mean", "std"))
    return Settings(means, stds, float(numbers["fps"]), data.get("num_frames"), int(numbers["max_frame_pixels"]))
