"""JSON schemas of Python functions, for chat templates that describe tools."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from burnish.environments.calls import GIVEN, called
from burnish.utils.docstrings import arguments, summary

KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schema(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a tool: its name, its docstring, and its parameters with their annotations.

    Args:
        name: of the tool.
        function: annotations and docstring are optional; the section "Args:" describes parameters. Of a class, what
            its instances are called by.
    """
    bound, function = isinstance(function, type), called(function)
    text = inspect.getdoc(function) or ""
    descriptions = arguments(text)
    hints = _hints(function)
    properties, required = {}, []
    for parameter in list(inspect.signature(function).parameters.values())[bound:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            continue
        if parameter.name in GIVEN and parameter.kind is parameter.KEYWORD_ONLY:  # no model writes them
            continue
        properties[parameter.name] = _kind(hints.get(parameter.name))
        if parameter.name in descriptions:
            properties[parameter.name]["description"] = descriptions[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": summary(text), "parameters": parameters},
    }


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations that can be understood; others may name what is imported for type checkers alone."""
    known = getattr(inspect.unwrap(function), "__globals__", {})
    found: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        one = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= typing.get_type_hints(one, known)
        except Exception:
            continue
    return found


def _kind(hint: Any) -> dict[str, Any]:
    """The schema of a type; {} takes anything."""
    if hint in KINDS:
        return {"type": KINDS[hint]}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_kind(one) for one in inner]}
    if (origin or hint) in (list, tuple, set):
        return {"type": "array"} | ({"items": _kind(inner[0])} if inner and origin is list else {})
    if (origin or hint) is dict:
        return {"type": "object"}
    return {}
