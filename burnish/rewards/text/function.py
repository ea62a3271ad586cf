"""Any Python function as a reward on text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.calling import call, check_call, verdicts_of
from burnish.rewards.text.base import LanguageReward, Response
from burnish.utils.user_code import load_object

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


@register("language reward", "function")
class LanguageFunction(LanguageReward):
    """function(responses, prompts, **arguments), async or not -> one number per response, None where there is none."""

    takes: ClassVar[str] = "responses, prompts"  # by place

    path: str
    """Where the function is: package.module:function, or path/to/file.py:function. A response has text and finished;
    a prompt has text, answer, source, label and info."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments that it is called with."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        check_call(self.path, self.arguments, self.judged)

    def user_code(self) -> list[str]:
        return [self.path]

    def prepare(self) -> None:
        load_object(self.path, "reward function")

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        # an exception goes to the caller, who then asks again for each response alone
        values = call(self.path, responses, prompts, self.arguments)
        return verdicts_of(values, len(responses), self.path, self.judged)
