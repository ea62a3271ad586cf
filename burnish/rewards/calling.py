"""Functions that users bring, by path, and what they return."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from burnish.rewards.base import Verdict
from burnish.utils.errors import UserError
from burnish.utils.user_code import load_object


def check_call(path: str, arguments: Mapping[str, Any], judged: str) -> None:
    """Refuse a reward function that can't be called as it will be, without calling it.

    Raises:
        UserError: it leads nowhere, or takes other arguments.
    """
    function = load_object(path, "reward function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C: only a call can tell
        return
    try:
        signature.bind([], [], **arguments)
    except TypeError as error:
        given = ", ".join([judged, "prompts", *(f"{name}=..." for name in arguments)])
        code = getattr(function, "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        raise UserError(
            f"reward function {path}{signature}{where} is called as function({given}), which it does not take: "
            f"{error}; change its parameters, or the option arguments of the reward"
        ) from None


def call(path: str, samples: Sequence[Any], prompts: Sequence[Any], arguments: Mapping[str, Any]) -> list[Any]:
    """What a reward function returns for a batch; one that is ``async`` runs until it is done."""
    found = load_object(path, "reward function")(list(samples), list(prompts), **arguments)
    if inspect.isawaitable(found):
        found = asyncio.run(_awaited(found))
    return list(found)


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


def verdicts_of(values: Sequence[Any], count: int, path: str, judged: str) -> list[Verdict]:
    """One verdict per sample from what a function returned; what is no finite number is missing.

    Args:
        values: one per sample; None where there is none.
        count: samples that it was asked about.
        path: of the function, for notes.
        judged: what samples are called.
    """
    if len(values) != count:
        why = f"{path} returned {len(values)} values for {count} {judged}"
        return [Verdict(None, (), why, fault=why)] * count
    return [_verdict(value, path) for value in values]


def _verdict(value: Any, path: str) -> Verdict:
    if value is None:
        return Verdict(None, (), f"{path} gave no value")
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several values raises the last
        why = f"{path} gave {_shown(value)}, which is not a number"
        return Verdict(None, (), why, fault=why)
    if not math.isfinite(number):
        return Verdict(None, (), f"{path} gave {number}, which is not finite")
    return Verdict(number)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
