"""Any Python function or class as a reward on responses."""

from __future__ import annotations

from typing import ClassVar

from burnish.registry import register
from burnish.rewards.function import FunctionReward, Half
from burnish.rewards.text.base import LanguageReward


@register("language reward", "function")
class LanguageFunction(FunctionReward, LanguageReward):
    """A function or class of yours, async or not, which gets what its parameters are named after: responses, prompts,
    references, response_ids, extra_info, keys of the record (docs/rewards.md).

    It returns a number per response, None where there is none, or a dict with a score and further values. Functions
    that were written for verl (compute_score) or TRL (completions, **kwargs) work as they are.
    """

    takes: ClassVar[str] = "responses, prompts"
    half: ClassVar[Half] = "said"
