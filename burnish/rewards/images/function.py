"""Any Python function as a reward on pictures."""

from __future__ import annotations

from typing import ClassVar

from burnish.registry import register
from burnish.rewards.base import Reward
from burnish.rewards.function import FunctionReward


@register("flow reward", "function")
class Function(FunctionReward, Reward):
    """function(images, prompts, **arguments), async or not -> one number per picture, None where there is none."""

    takes: ClassVar[str] = "images, prompts"
