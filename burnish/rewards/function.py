"""Any Python function as a reward."""

from __future__ import annotations

import importlib
import importlib.util
import math
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

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        try:
            values = self._call(images, prompts)
        except Exception as error:
            if len(images) == 1:
                return [Verdict(None, (), f"{self.path} raised {type(error).__name__}: {error}")]
            # one sample that the function can't do must not take the others with it
            return [self.score([i], [p])[0] for i, p in zip(images, prompts, strict=True)]
        return [self._verdict(value) for value in values]

    def _call(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Any]:
        values = list(self._function()(list(images), list(prompts), **self.arguments))
        if len(values) != len(images):
            raise ValueError(f"it returned {len(values)} values for {len(images)} pictures")
        return values

    def _verdict(self, value: Any) -> Verdict:
        if value is None:
            return Verdict(None, (), f"{self.path} gave no value")
        try:
            number = float(value)
        except (TypeError, ValueError):
            return Verdict(None, (), f"{self.path} gave {value!r}, which is not a number")
        if not math.isfinite(number):
            return Verdict(None, (), f"{self.path} gave {number}, which is not finite")
        return Verdict(number)

    def _function(self) -> Callable[..., Any]:
        where, colon, name = self.path.rpartition(":")
        if not colon or not where or not name:
            raise UserError(f"path of reward function is {self.path!r}; write package.module:function or file.py:function")
        try:
            module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        except (ImportError, OSError) as error:
            raise UserError(f"path of reward function is {self.path!r}, but {where} can't be imported: {error}") from None
        function = getattr(module, name, None)
        if not callable(function):
            what = "has no such name" if function is None else "is not a function there"
            raise UserError(f"path of reward function is {self.path!r}, but {name} {what}")
        return function


_files: dict[Path, Any] = {}


def _from_file(path: Path) -> Any:
    path = path.expanduser().resolve()
    if path not in _files:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise OSError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _files[path] = module
    return _files[path]
