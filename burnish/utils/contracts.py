"""Whether a class or a function is what those who call it expect, found when it is registered and not when it runs.

A contract is a base class, whose abstract methods have to be there; a protocol of classes, all of whose methods and
class variables have to be there; or a protocol of functions, which has ``__call__`` alone. What is there has to take
the arguments that the contract names. What docstrings say is read here, too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any


def unfulfilled(given: Any, contract: type) -> list[str]:
    """What a class or a function lacks, as ends of sentences."""
    where = f"{contract.__module__}.{contract.__qualname__}"
    protocol = getattr(contract, "_is_protocol", False)
    if protocol and "__call__" in vars(contract):
        wanted = vars(contract)["__call__"]
        head = shown("function", wanted).replace("(self, ", "(")
        if isinstance(given, type) or not callable(given):
            return [f"is not a function; write one as {where}: {head}"]
        fits = _takes(given, wanted, left_out=True)
        return [] if fits else [f"is {shown('function', given)}, but is called as {head}; see {where}"]
    if not isinstance(given, type):
        return [f"is not a class; write one {'as' if protocol else 'that derives from'} {where}"]
    if not protocol and not issubclass(given, contract):
        return [f"does not derive from {where}, whose docstrings say what it has to do"]
    found = [*_variables(given, contract), *_methods(given, contract)]
    return [*found, f"see {where}"] if found else []


def shown(name: str, function: Callable[..., Any]) -> str:
    """The head of a function without types, as one would write it."""
    own = inspect.signature(function)
    bare = [one.replace(annotation=one.empty) for one in own.parameters.values()]
    return f"{name}{own.replace(parameters=bare, return_annotation=own.empty)}"


def _methods(given: type, contract: type) -> Iterator[str]:
    """What is wrong with methods: those of the contract, and those that another base leaves to be written."""
    protocol = getattr(contract, "_is_protocol", False)
    for name in dict.fromkeys([*dir(contract), *dir(given)]):
        own, promised = (inspect.getattr_static(one, name, None) for one in (given, contract))
        wanted = _function(promised) or _function(own)
        if name.startswith("_") or wanted is None:
            continue
        function = _function(own)
        if own is None or (protocol and own is promised) or getattr(function, "__isabstractmethod__", False):
            words = (inspect.getdoc(wanted) or "").partition("\n")[0].rstrip(".")
            yield f"has no method {shown(name, wanted)}: {words[:1].lower()}{words[1:]}"
        elif function is not None and not _takes(function, wanted, left_out=isinstance(own, staticmethod)):
            yield f"has {shown(name, function)}, but is called as {shown(name, wanted)}"


def _variables(given: type, contract: type) -> Iterator[str]:
    kinds = {name: kind for base in contract.__mro__ for name, kind in vars(base).get("__annotations__", {}).items()}
    for name, kind in kinds.items():
        # as a class of ours writes it; what only an instance has is not there yet
        if str(kind).startswith("ClassVar") and name != "name" and not hasattr(given, name):
            yield f"has no class variable {name}: {kind}"


def _function(member: Any) -> Any:
    """The function of a method, also of a class or of none; None where it is something else."""
    member = getattr(member, "__func__", member)
    return member if inspect.isfunction(member) else None


def _takes(own: Callable[..., Any], wanted: Callable[..., Any], *, left_out: bool) -> bool:
    """Whether a function takes the arguments that another one takes, or all but the first."""
    parameters = inspect.signature(wanted).parameters.values()
    by_name = {one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
    by_place = [None for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    try:
        inspect.signature(own).bind(*by_place[int(left_out) :], **by_name)
    except TypeError:
        return False
    return True


ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
SECTIONS = re.compile(r"\n\s*(?:Args|Arguments|Parameters|Returns|Raises):")


def summary(text: str) -> str:
    """What a docstring says before its sections, on one line."""
    return " ".join(SECTIONS.split(f"\n{text}")[0].split())


def arguments(text: str) -> dict[str, str]:
    """What a docstring says of each argument, below "Args:"."""
    _, _, section = f"\n{text}".partition("\nArgs:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line and not line[0].isspace():
            break
        match = ARGUMENT.match(line)
        if match:
            name = match[1]
            found[name] = match[2].strip()
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found
