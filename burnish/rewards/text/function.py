"""Any Python function as a reward on responses."""

from __future__ import annotations

from typing import ClassVar

from burnish.registry import register
from burnish.rewards.function import FunctionReward
from burnish.rewards.text.base import LanguageReward


@register("language reward", "function")
class LanguageFunction(FunctionReward, LanguageReward):
    """function(responses, prompts, **arguments), async or not -> one number per response, None where there is none.

    A response has text and finished; a prompt has text, answer, source, label and info.
    """

    takes: ClassVar[str] = "responses, prompts"
