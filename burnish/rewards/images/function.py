"""Any Python function as a reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from burnish.registry import register
from burnish.rewards.base import Reward, Verdict
from burnish.rewards.calling import call, check_call, verdicts_of
from burnish.utils.user_code import load_object

if TYPE_CHECKING:
    import numpy as np

    from burnish.types.prompt import Prompt


@register("flow reward", "function")
class Function(Reward):
    """function(images, prompts, **arguments), async or not -> one number per picture, None where there is none."""

    takes: ClassVar[str] = "images, prompts"  # by place

    path: str
    """Where the function is: package.module:function, or path/to/file.py:function."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments that it is called with."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        check_call(self.path, self.arguments, self.judged)

    def user_code(self) -> list[str]:
        return [self.path]

    def prepare(self) -> None:
        load_object(self.path, "reward function")

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        # an exception goes to the caller, who then asks again for each picture alone
        values = call(self.path, images, prompts, self.arguments)
        return verdicts_of(values, len(images), self.path, self.judged)
