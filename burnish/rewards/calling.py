"""Functions that users bring, by path, and what they return."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.rewards.base import Verdict
from burnish.utils.errors import UserError
from burnish.utils.reading import checked_path


def load_function(path: str, what: str = "reward function") -> Callable[..., Any]:
    """The function at package.module:function or path/to/file.py:function.

    Args:
        path: of the function.
        what: it is meant to be, for messages.

    Raises:
        UserError: the path leads nowhere, or its module fails to import.
    """
    where, colon, name = path.rpartition(":")
    if not colon or not where or not name:
        raise UserError(f"path of {what} is {path!r}; write package.module:function or file.py:function")
    try:
        module = _from_file(checked_path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (Exception, SystemExit) as error:  # the module is the user's: anything may go wrong in it
        reason = f"{type(error).__name__}: {error}"
        why = f"{where} fails to import: {reason}; mend it, or give another path"
        raise UserError(f"path of {what} is {path!r}, but {why}") from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        why = "has no such name" if function is None else "is not a function there"
        raise UserError(f"path of {what} is {path!r}, but {name} {why}; give the name of a function")
    return function


def check_call(path: str, arguments: Mapping[str, Any], judged: str) -> None:
    """Refuse a reward function that can't be called as it will be, without calling it.

    Raises:
        UserError: it leads nowhere, or takes other arguments.
    """
    function = load_function(path)
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
    found = load_function(path)(list(samples), list(prompts), **arguments)
    if inspect.isawaitable(found):
        found = asyncio.run(_awaited(found))
    return list(found)


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


def code_of(path: str) -> bytes | None:
    """What is in the file of a function, which is not run; None where it has none, or can't be found."""
    where = path.rpartition(":")[0]
    try:
        if where.endswith(".py"):
            return checked_path(where).read_bytes()
        spec = importlib.util.find_spec(where)
        return Path(spec.origin).read_bytes() if spec is not None and spec.origin is not None else None
    except Exception:  # the user's packages are imported on the way, and whatever is wrong is told when it is called
        return None


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


_files: dict[Path, Any] = {}


def _from_file(path: Path) -> Any:
    path = path.expanduser().resolve()
    if path not in _files:
        spec = importlib.util.spec_from_file_location(f"burnish_function:{path}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        _files[path] = module
    return _files[path]
