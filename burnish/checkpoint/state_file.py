"""The state of a run but for its tensors, as JSON: numbers come back bit for bit, tuples as tuples."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json

NAME = "state.json"
TENSOR, TUPLE, PAIRS, NUMBER = "$tensor", "$tuple", "$pairs", "$number"  # the only key of what JSON has no form for


@dataclass(frozen=True)
class Reference:
    """Stands for a tensor, which is in a file of its own."""

    name: str


def render(value: Any) -> bytes:
    """Nested dicts, lists, tuples, numbers, text, booleans, None and references."""
    return json.dumps(_plain(value), allow_nan=False).encode()


def read(content: bytes, tensors: Mapping[str, Any]) -> Any:
    """The opposite of ``render``, with tensors in their places.

    Raises:
        UserError: it was not written by a run.
    """
    try:
        return _restored(parse_json(content), tensors)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{NAME} was not written by Burnish: {error}; use another checkpoint") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and not _is_tagged(value):
            return {key: _plain(item) for key, item in value.items()}
        return {PAIRS: [[_plain(key), _plain(item)] for key, item in value.items()]}
    if isinstance(value, Reference):
        return {TENSOR: value.name}
    if isinstance(value, tuple):
        return {TUPLE: [_plain(item) for item in value]}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {NUMBER: str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _is_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and next(iter(value)) in (TENSOR, TUPLE, PAIRS, NUMBER)


def _restored(value: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_restored(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if not _is_tagged(value):
        return {key: _restored(item, tensors) for key, item in value.items()}
    ((tag, content),) = value.items()
    if tag == TENSOR:
        if content not in tensors:
            raise ValueError(f"a tensor of the checkpoint is missing: {content!r:.80}")
        return tensors[content]
    if tag == NUMBER:
        return float(content)
    items = [_restored(item, tensors) for item in content]
    return tuple(items) if tag == TUPLE else dict(items)
