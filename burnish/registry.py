"""One decorator gives a class its name in recipes; a registered class is its own configuration.

Importing a registered class is cheap: modules of algorithms, rewards and models import torch, diffusers or
onnxruntime inside the methods that need them, so that a command line can be checked in a fraction of a second.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import pydantic
import pydantic.dataclasses

T = TypeVar("T")
Class = TypeVar("Class", bound=type)

_registered: dict[str, dict[str, type]] = {
    "flow algorithm": {},
    "language algorithm": {},
    "flow reward": {},
    "flow model": {},
    "language model": {},
    "language reward": {},
    "environment": {},
}
_packages = {
    "flow algorithm": "burnish.algorithms.flow",
    "language algorithm": "burnish.algorithms.language",
    "flow reward": "burnish.rewards.images",
    "flow model": "burnish.models.flow",
    "language model": "burnish.models.language",
    "language reward": "burnish.rewards.text",
    "environment": "burnish.environments",
}


@dataclass_transform(kw_only_default=True)
def options(cls: type[T]) -> type[T]:
    """Make a dataclass whose fields are options of a run: checked when made, explained by the string below each."""
    config = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=True)
    made = pydantic.dataclasses.dataclass(kw_only=True, config=config)(cls)
    return made  # type: ignore[return-value]


def register(kind: str, name: str) -> Callable[[Class], Class]:
    """Enter a class under ``name`` so that recipes can ask for it; ``kind`` is one of the kinds above."""

    def enter(cls: Class) -> Class:
        known = _registered[kind].get(name)
        assert known is None or known.__qualname__ == cls.__qualname__, f"{kind} {name} is registered twice"
        cls.name = name  # type: ignore[attr-defined]
        _registered[kind][name] = cls
        return cls

    return enter


def names(kind: str) -> list[str]:
    """Every registered name of a kind, sorted."""
    _import_all(kind)
    return sorted(_registered[kind])


def lookup(kind: str, name: str) -> Any:
    """The class registered under ``name``.

    Raises:
        ValueError: nothing has that name; the message lists what exists and suggests the nearest.
    """
    _import_all(kind)
    try:
        return _registered[kind][name]
    except KeyError:
        near = difflib.get_close_matches(name, _registered[kind], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{kind} {name!r} is not known.{hint} Known: {', '.join(names(kind))}") from None


def _import_all(kind: str) -> None:
    package = importlib.import_module(_packages[kind])
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
