"""What a generator has drawn, judged as the quickstart judges it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tiny_data import prompt_of
from torch import Tensor

from burnish.metrics import group_diversity
from burnish.rewards.images.ocr import Ocr
from burnish.rewards.images.pixels import BorderDarkness
from burnish.types.prompt import Prompt


def to_bytes(pictures: Tensor) -> Tensor:
    """Pictures in [-1, 1] as uint8."""
    return ((pictures.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def measure(pictures: Tensor, numbers: Sequence[str]) -> dict[str, float]:
    """How well pictures [numbers, samples, 1, height, width] in [-1, 1] show the numbers."""
    samples = pictures.shape[1]
    images = [picture.expand(3, -1, -1).permute(1, 2, 0).numpy() for picture in to_bytes(pictures).flatten(0, 1)]
    prompts = [Prompt(text=prompt_of(number), answer=number) for number in numbers for _ in range(samples)]
    verdicts = Ocr().score(images, prompts)
    frames = BorderDarkness().score(images, prompts)
    # what could not be judged has no value, and makes the mean NaN
    return {
        "exact": float(np.mean([verdict.extras for verdict in verdicts])),
        "reward": float(np.mean(np.array([verdict.value for verdict in verdicts], dtype=float))),
        "border": float(np.mean(np.array([frame.value for frame in frames], dtype=float))),
        "variety": group_diversity(images, torch.arange(len(numbers)).repeat_interleave(samples)),
    }
