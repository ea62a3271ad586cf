"""Tiny checkpoints of learned rewards, and what is scored by them."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.commands.tiny import SCORERS, write_scorer
from burnish.registry import lookup
from burnish.rewards.images.learned import LearnedReward
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from tests.support.drawing import line

TEXTS = ("a red cat", "two blue dogs beside a house", "a lighthouse at night, in the rain", "a red cat")


@cache
def _written(name: str) -> tempfile.TemporaryDirectory[str]:
    found = tempfile.TemporaryDirectory(prefix=f"burnish-{name}-")  # goes when the process ends
    write_scorer(next(one for one in SCORERS if one.name == name), Path(found.name), 0)
    return found


def checkpoint(name: str) -> Path:
    """A tiny checkpoint of a reward, written once; whoever changes it copies it first."""
    return Path(_written(name).name)


def at_checkpoint(value: str) -> str:
    """A value of a table: DIR/NAME is the checkpoint of that reward, which is not written before it is asked for."""
    name, _, rest = value.removeprefix("DIR/").partition("/")
    return str(checkpoint(name) / rest) if value.startswith("DIR/") else value


def tiny_reward(name: str, folder: Path | None = None, **options: Any) -> Any:
    found = next(one for one in SCORERS if one.name == name)
    return lookup("flow reward", name)(**found.given(folder or checkpoint(name)) | options)


def with_tiny_scorers(config: Any) -> list[str]:
    """Overrides that give the learned rewards of a configuration tiny checkpoints, on the CPU."""
    found, named = [], {one.name: one for one in SCORERS}
    for label, reward in config.rewards.items():
        if isinstance(reward, LearnedReward) and (tiny := named.get(reward.name)) is not None:
            # what a recipe takes of CLIP, it gets of the tiny network of that reward
            given = tiny.given(checkpoint(reward.name)) | {"device": "cpu"}
            found += [f"rewards.{label}.{name}={'null' if one is None else one}" for name, one in given.items()]
    return found


def examples() -> list[np.ndarray]:
    """Noise, a gradient, text, and a small plain one: of four sizes, uint8 [H, W, 3]."""
    noise = np.random.default_rng(0).integers(0, 256, (96, 80, 3), dtype=np.uint8)
    ramp = np.linspace(0, 255, 64, dtype=np.uint8)
    gradient = np.stack([np.tile(ramp, (64, 1)), np.tile(ramp[:, None], (1, 64)), np.full((64, 64), 90, np.uint8)], 2)
    return [noise, gradient, line("472 cats", width=150, height=90), np.full((33, 40, 3), (200, 60, 20), np.uint8)]


def prompts() -> list[Prompt]:
    """One for each of the images, which shows an image itself."""
    return [Prompt(text=text, images=(Media.array(examples()[0]),)) for text in TEXTS]


def as_tensor(image: np.ndarray) -> torch.Tensor:
    """An image as a generator draws it: [1, 3, H, W] in [0, 1]."""
    return torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 255


def values(reward: Any, images: list[np.ndarray] | None = None, asked: list[Prompt] | None = None) -> torch.Tensor:
    """What a reward scores, none missing."""
    found = [one.value for one in reward.score(images or examples(), asked or prompts())]
    assert None not in found
    return torch.tensor(found)
