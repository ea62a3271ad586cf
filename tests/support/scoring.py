"""Rewards as a run asks them: one alone, or several by its scorer, with processes of its own or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from burnish.options import ScoringOptions
from burnish.options.mixing import MixingOptions
from burnish.registry import lookup
from burnish.rewards.base import AnyReward, Reward, Verdict
from burnish.rewards.given import Given
from burnish.rewards.judging import judge
from burnish.rewards.scoring import Scorer
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt

__all__ = ["LIMIT", "Given", "Response", "Scorer", "ask", "function", "grey", "judged", "judged_values", "scorer"]

LIMIT = 45.0  # seconds after which a test fails rather than waits; nothing here takes more than a few


def judged(reward: AnyReward, samples: Sequence[Any], prompts: Sequence[Prompt], **given: Any) -> list[Verdict]:
    """What a run takes from a reward: its errors are missing values. ``given`` is what else is known of the samples."""
    return judge(reward, samples, prompts, Given(**given))


def judged_values(
    reward: AnyReward, samples: Sequence[Any], prompts: Sequence[Prompt], **given: Any
) -> list[float | None]:
    return [verdict.value for verdict in judged(reward, samples, prompts, **given)]


def function(name: str, weight: float = 1.0, **arguments: Any) -> Reward:
    path = f"tests.support.reward_functions:{name}"
    return lookup("flow reward", "function")(path=path, weight=weight, arguments=arguments)


def scorer(
    rewards: dict[str, AnyReward],
    processes: int = 0,
    timeout: float = LIMIT,
    mixing: MixingOptions | None = None,
    **options: Any,
) -> Scorer:
    """Args: ``options`` are those of ``scoring``."""
    timed = {"timeout": timeout} if processes else {}
    return Scorer(rewards, ScoringOptions(processes=processes, **timed, **options), mixing or MixingOptions())


def grey(level: int, count: int = 1) -> list[np.ndarray]:
    return [np.full((4, 4, 3), level, dtype=np.uint8)] * count


def ask(*texts: str) -> list[Prompt]:
    return [Prompt(text=text, answer="472") for text in texts]
