"""One decorator gives a class or a function its name in recipes; what is registered is its own configuration.

Importing a registered class is cheap: modules of algorithms, rewards and models import torch, diffusers or
onnxruntime inside the methods that need them, so that a command line can be checked in a fraction of a second.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import inspect
import pkgutil
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, dataclass_transform

import pydantic
import pydantic.dataclasses

from burnish.utils.contracts import place, unfulfilled
from burnish.utils.docstrings import arguments, summary
from burnish.utils.errors import UserError
from burnish.utils.user_code import absolute, load_object, reason

T = TypeVar("T")
ENTRY_POINTS = "burnish.plugins"  # group in which installed packages name modules that register something


@dataclass(frozen=True)
class Kind:
    """A sort of thing that recipes choose by name."""

    package: str  # of ours, whose modules register what ships with Burnish
    contract: str  # module:Name of what every entry must be: a base class, or a protocol; see burnish.utils.contracts
    options: bool = True  # a recipe's section fills the fields of its classes
    entries: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "flow algorithm": Kind("burnish.algorithms.flow", "burnish.algorithms.base:Algorithm"),
    "language algorithm": Kind("burnish.algorithms.language", "burnish.algorithms.language.base:LanguageAlgorithm"),
    "flow reward": Kind("burnish.rewards.images", "burnish.rewards.base:Reward"),
    "language reward": Kind("burnish.rewards.text", "burnish.rewards.text.base:LanguageReward"),
    "environment": Kind("burnish.environments", "burnish.environments.base:Environment"),
    "flow model": Kind("burnish.models.flow", "burnish.models.flow.base:FlowModel", options=False),
    "language model": Kind("burnish.models.language", "burnish.language.model:LanguageModel", options=False),
}


@dataclass_transform(kw_only_default=True)
def options(cls: type[T]) -> type[T]:
    """Make a dataclass whose fields are options of a run: checked when made, explained by the string below each."""
    config = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=True)
    made = pydantic.dataclasses.dataclass(kw_only=True, config=config)(cls)
    return made  # type: ignore[return-value]


@dataclass_transform(kw_only_default=True)
def register(kind: str, name: str) -> Callable[[T], T]:
    """Enter a class or a function under ``name``, so that recipes can ask for it.

    The fields of a class are its options: it becomes a dataclass whose options are checked, and explained by the string
    below each. Of a function of tensors, keyword-only parameters are its options, explained by its docstring ("Args:")
    or by ``Annotated[float, "..."]``; the function itself stays what it is.

    Args:
        kind: one of ``KINDS``.
        name: by which recipes know it.

    Raises:
        UserError: the name is taken, or it is not what its kind has to be; the message says what is missing.
    """
    if kind not in KINDS:
        raise UserError(f"register({kind!r}, {name!r}): there is no such kind; kinds are {', '.join(KINDS)}")

    def enter(given: T) -> T:
        made = _entry(kind, name, given)
        return made if isinstance(given, type) else given

    return enter


def names(kind: str) -> list[str]:
    """Every registered name of a kind, sorted."""
    _import_all(kind)
    return sorted(KINDS[kind].entries)


def known(kind: str, name: Any) -> bool:
    """Whether there is an entry of that name; plug-ins of installed packages are opened to find it."""
    if name not in names(kind):
        open_entry_points()
    return name in KINDS[kind].entries


def lookup(kind: str, name: str) -> Any:
    """The class registered under ``name``; of a function, a class whose instances are the function with its options.

    Raises:
        ValueError: nothing has that name; the message lists what exists and suggests the nearest.
    """
    name = named(kind, name)
    if known(kind, name):
        return KINDS[kind].entries[name]
    near = difflib.get_close_matches(name, KINDS[kind].entries, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{kind} {name!r} is not known.{hint} Known: {', '.join(names(kind))}")


def named(kind: str, name: Any) -> Any:
    """The name under which an entry is known: file.py:Class and package.module:Class are registered as such here.

    Raises:
        UserError: the path leads nowhere, or to something that is not of that kind.
    """
    if not isinstance(name, str) or ":" not in name:
        return name
    where, _, inner = name.rpartition(":")
    path = f"{absolute(where)}:{inner}"
    if path not in KINDS[kind].entries:
        found = load_object(name, kind)
        mine = [known for known, entry in KINDS[kind].entries.items() if entry is found]
        if mine:  # it has a name of its own
            return mine[0]
        _entry(kind, path, found)
    return path


@cache
def open_entry_points() -> dict[str, str]:
    """Open the plug-ins of installed packages: for each of their names, what it opened.

    Raises:
        UserError: one fails to import.
    """
    opened = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except (Exception, SystemExit) as error:  # whatever its author wrote
            package = point.dist.name if point.dist else "?"
            raise UserError(
                f"plug-in {point.name} of the installed package {package} ({point.value}) fails to import: "
                f"{reason(error)}; update or uninstall {package}"
            ) from error
        opened[point.name] = point.value
    return opened


def _entry(kind: str, name: str, given: Any) -> Any:
    """Check and enter a class or a function: what a recipe's section is made into."""
    entries, what = KINDS[kind].entries, f"{kind} {name!r} ({place(given)})"
    if not given.__module__.startswith("burnish."):
        _import_all(kind)  # so that a name of ours is found to be taken by whoever takes it second
    before = entries.get(name)
    if before is not None and (before.__module__, before.__qualname__) != (given.__module__, given.__qualname__):
        raise UserError(f"{what} is registered already, by {place(before)}; give it another name")
    lacking = unfulfilled(given, _load(KINDS[kind].contract))
    if lacking:
        raise UserError(f"{what} {'; '.join(lacking)}")
    if not isinstance(given, type):
        made = _of_function(given, name)
    elif KINDS[kind].options and "__pydantic_fields__" not in vars(given):
        made = options(given)
    else:
        made = given
    made.name = name  # type: ignore[attr-defined]
    entries[name] = made
    return made


def _of_function(function: Callable[..., Any], name: str) -> type:
    """A class whose fields are the keyword-only parameters of a function, and whose instances call it with them."""
    own = [one for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    bare = [one.name for one in own if one.annotation is one.empty]
    if bare:
        raise UserError(f"{place(function)}: parameter {bare[0]} has no type; write it as in {bare[0]}: float = 1.0")
    # types of tensors are not resolved: their modules may be imported for type checkers alone
    holder = type(name, (), {"__annotations__": {one.name: one.annotation for one in own}})
    holder.__module__ = function.__module__
    told = arguments(inspect.getdoc(function) or "")
    body: dict[str, Any] = {"__annotations__": {}, "__module__": function.__module__}
    for option, hint in typing.get_type_hints(holder, include_extras=True).items():
        words = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, str)]
        default = inspect.signature(function).parameters[option].default
        given = {} if default is inspect.Parameter.empty else {"default": default}
        body["__annotations__"][option] = hint
        body[option] = pydantic.Field(description=words[0] if words else told.get(option, ""), **given)

    def call(self: Any, *tensors: Any) -> Any:
        return function(*tensors, **{one.name: getattr(self, one.name) for one in own})

    body |= {"__call__": call, "__doc__": summary(inspect.getdoc(function) or ""), "function": staticmethod(function)}
    made: type = options(type(function.__name__, (), body))
    made.__qualname__ = function.__qualname__
    return made


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _import_all(kind: str) -> None:
    package = importlib.import_module(KINDS[kind].package)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
