"""What a generator has drawn, judged as the quickstart judges it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import torch
from tiny_data import prompt_of
from tiny_video_data import Scene
from torch import Tensor

from burnish.metrics import group_diversity
from burnish.rewards.base import FrameOptions, Score
from burnish.rewards.images.motion import Motion
from burnish.rewards.images.ocr import Ocr
from burnish.rewards.images.statistics import BorderDarkness
from burnish.types.prompt import Prompt
from burnish.types.samples import Clip, coarse

FRAMES_READ = FrameOptions(every=4)
FPS = 8.0  # which none of these reads


def to_bytes(images: Tensor) -> Tensor:
    """Images in [-1, 1] as uint8."""
    return ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def measure(drawn: Tensor, numbers: Sequence[str]) -> dict[str, float]:
    """How well images [numbers, samples, 1, height, width] in [-1, 1] show the numbers."""
    samples = drawn.shape[1]
    images = [image.expand(3, -1, -1).permute(1, 2, 0).numpy() for image in to_bytes(drawn).flatten(0, 1)]
    prompts = [Prompt(text=prompt_of(number), answer=number) for number in numbers for _ in range(samples)]
    scores = Ocr().score(images, prompts)
    frames = BorderDarkness().score(images, prompts)
    # what could not be judged has no value, and makes the mean NaN
    group = torch.arange(len(numbers)).repeat_interleave(samples)
    return {
        "exact": float(np.mean([score.numbers["exact"] for score in scores])),
        "reward": float(np.mean(np.array([score.value for score in scores], dtype=float))),
        "border": float(np.mean(np.array([frame.value for frame in frames], dtype=float))),
        "variety": group_diversity([coarse(image) for image in images], group),
    }


def measure_clips(clips: Tensor, scenes: Sequence[Scene]) -> dict[str, float]:
    """How well clips [scenes, samples, frames, height, width, 3] in [0, 1] show what they should."""
    samples = clips.shape[1]
    shown = [Clip(frames=frames.numpy(), fps=FPS) for frames in to_bytes(clips * 2 - 1).flatten(0, 1)]
    prompts = [
        Prompt(text=scene.prompt, answer=scene.number, extra=json.dumps({"direction": scene.direction}))
        for scene in scenes
        for _ in range(samples)
    ]
    read = Ocr(frames=FRAMES_READ)(shown, prompts)
    moved = Motion()(shown, prompts)
    border = BorderDarkness(frames=FRAMES_READ)(shown, prompts)
    group = torch.arange(len(scenes)).repeat_interleave(samples)
    return {
        "exact": float(np.mean([score.numbers["exact"] for score in read])),
        "ocr": _mean(read),
        "motion": _mean(moved),
        "border": _mean(border),
        "variety": group_diversity([coarse(clip) for clip in shown], group),
    }


def _mean(scores: Sequence[Score]) -> float:
    # what could not be judged has no value, and makes the mean NaN
    return float(np.mean(np.array([score.value for score in scores], dtype=float)))
