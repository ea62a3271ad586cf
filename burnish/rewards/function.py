"""Any Python function as a reward."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from burnish.errors import UserError
from burnish.registry import options, register
from burnish.rewards.base import Reward, Verdict

if TYPE_CHECKING:
    import numpy as np

    from burnish.prompt import Prompt


@register("reward", "function")
@options
class Function(Reward):
    """function(images, prompts, **arguments) -> one number per picture, None where there is none."""

    path: str
    """Where the function is: package.module:function, or path/to/file.py:function."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments that it is called with."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        self._function()

    def prepare(self) -> None:
        self._function()

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        # an exception goes to the caller, who then asks again for each picture alone
        values = list(self._function()(list(images), list(prompts), **self.arguments))
        if len(values) != len(images):
            reason = f"{self.path} returned {len(values)} values for {len(images)} pictures"
            return [Verdict(None, (), reason)] * len(images)
        return [self._verdict(value) for value in values]

    def _verdict(self, value: Any) -> Verdict:
        if value is None:
            return Verdict(None, (), f"{self.path} gave no value")
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError, RuntimeError):  # a tensor of several values raises the last
            return Verdict(None, (), f"{self.path} gave {value!r}, which is not a number")
        if not math.isfinite(number):
            return Verdict(None, (), f"{self.path} gave {number}, which is not finite")
        return Verdict(number)

    def _function(self) -> Callable[..., Any]:
        where, colon, name = self.path.rpartition(":")
        if not colon or not where or not name:
            raise UserError(
                f"path of reward function is {self.path!r}; write package.module:function or file.py:function"
            )
        try:
            module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        except Exception as error:  # the module is the user's: anything may go wrong in it
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"path of reward function is {self.path!r}, but {where} fails to import: {reason}"
            ) from error
        function = getattr(module, name, None)
        if not callable(function):
            what = "has no such name" if function is None else "is not a function there"
            raise UserError(f"path of reward function is {self.path!r}, but {name} {what}")
        return function


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
