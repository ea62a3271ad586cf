"""Asks a reward for its verdicts, and keeps what it can't do from taking anything else with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.rewards.base import Reward, Verdict

if TYPE_CHECKING:
    import numpy as np

    from burnish.prompt import Prompt

LARGEST = 3.4e38  # of float32, in which rewards travel on


def judge(reward: Reward, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
    """The verdicts of a reward. Where it raises for a batch, every picture is tried by itself.

    Args:
        reward: whose verdicts are wanted.
        images: uint8 arrays [H, W, 3].
        prompts: one per picture.

    Returns:
        One verdict per picture. Where the reward raised or gave no finite number, the value is
        None and the note says why.
    """
    if not images:
        return []
    try:
        # copies: a reward that draws on its pictures must not change what the next one sees
        verdicts = reward.score([image.copy() for image in images], list(prompts))
        if len(verdicts) != len(images):
            raise ValueError(f"it gave {len(verdicts)} verdicts for {len(images)} pictures")
        return [_checked(reward, verdict) for verdict in verdicts]
    except Exception as error:
        if len(images) == 1:
            return [missing(f"{type(error).__name__}: {error}")]
        return [judge(reward, [image], [prompt])[0] for image, prompt in zip(images, prompts, strict=True)]


def missing(why: str) -> Verdict:
    """A verdict that could not be given."""
    return Verdict(None, (), why)


def _checked(reward: Reward, verdict: Verdict) -> Verdict:
    if verdict.value is None:
        return missing(verdict.note or "it gave no value")
    if not math.isfinite(verdict.value) or abs(verdict.value) > LARGEST:
        return missing(f"its value is {verdict.value}, which is not a finite number")
    if len(verdict.extras) != len(reward.extras):
        raise ValueError(f"it gave {len(verdict.extras)} extras, but declares {len(reward.extras)}")
    return verdict
