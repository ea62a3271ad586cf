"""Rewards on pictures, asked in processes of their own or without."""

import numpy as np

from burnish.options import ScoringOptions
from burnish.registry import lookup
from burnish.rewards.base import Reward
from burnish.rewards.scoring import Scorer
from burnish.types.prompt import Prompt

LIMIT = 45.0  # seconds after which a test fails rather than waits; nothing here takes more than a few


def function(name: str, weight: float = 1.0, **arguments) -> Reward:
    path = f"tests.support.reward_functions:{name}"
    return lookup("flow reward", "function")(path=path, weight=weight, arguments=arguments)


def scorer(processes: int = 1, timeout: float = LIMIT, **rewards: Reward) -> Scorer:
    return Scorer(rewards, ScoringOptions(processes=processes, timeout=timeout))


def grey(level: int, count: int = 1) -> list[np.ndarray]:
    return [np.full((4, 4, 3), level, dtype=np.uint8)] * count


def ask(*texts: str) -> list[Prompt]:
    return [Prompt(text=text, answer="472") for text in texts]
