"""Python functions of users as rewards."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from burnish.registry import options
from burnish.rewards.base import AnyReward, Verdict
from burnish.utils.errors import UserError
from burnish.utils.user_code import load_object

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


@options
class FunctionReward(AnyReward):
    """Base of rewards that call a function of the user."""

    takes: ClassVar[str]  # positional arguments of the function, for messages

    path: str
    """Where the function is: package.module:function, or path/to/file.py:function."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of every call."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse a function that can't be imported, or doesn't take the arguments; it is not called."""
        function = load_object(self.path, "reward function")
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # written in C: only a call can tell
            return
        try:
            signature.bind([], [], **self.arguments)
        except TypeError as error:
            call = ", ".join([self.judged, "prompts", *(f"{name}=..." for name in self.arguments)])
            code = getattr(function, "__code__", None)
            where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
            raise UserError(
                f"reward function {self.path}{signature}{where} is called as function({call}), which it doesn't "
                f"accept: {error}; change its parameters, or the option arguments of the reward"
            ) from None

    def user_code(self) -> list[str]:
        return [self.path]

    def prepare(self) -> None:
        load_object(self.path, "reward function")

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> list[Verdict]:
        # an exception goes to the caller, which then scores each sample alone
        found = load_object(self.path, "reward function")(list(samples), list(prompts), **self.arguments)
        if inspect.isawaitable(found):
            found = asyncio.run(_awaited(found))
        values = list(found)
        if len(values) != len(samples):
            why = f"{self.path} returned {len(values)} values for {len(samples)} {self.judged}"
            return [Verdict(None, (), why, fault=why)] * len(samples)
        return [_verdict(value, self.path) for value in values]


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


def _verdict(value: Any, path: str) -> Verdict:
    if value is None:
        return Verdict(None, (), f"{path} gave no value")
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several values
        why = f"{path} gave {_shown(value)}, which is not a number"
        return Verdict(None, (), why, fault=why)
    if not math.isfinite(number):
        return Verdict(None, (), f"{path} gave {number}, which is not finite")
    return Verdict(number)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
