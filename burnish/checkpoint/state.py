"""The state of a run as files: a tensor file per rank, and the rest as JSON, whose numbers come back bit for bit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from burnish.checkpoint import tensor_file
from burnish.checkpoint.files import FileEntry
from burnish.training.saved import in_memory
from burnish.utils.errors import UserError

NAME = "state.json"
LAZY = ("roles", "groups", "ema")  # parts of the state: each rank reads its own slices, into memory that is there
TENSOR, TUPLE, PAIRS, NUMBER = "$tensor", "$tuple", "$pairs", "$number"  # the only key of what JSON has no form for


def plain(state: dict[str, Any]) -> tuple[bytes, dict[str, Tensor]]:
    """A state as JSON with references to its tensors, and these by name."""
    tensors: dict[str, Tensor] = {}
    content = {name: _plain(value, name, tensors) for name, value in state.items()}
    return json.dumps(content, allow_nan=False).encode(), tensors


def read(path: Path, files: Mapping[str, FileEntry]) -> dict[str, Any]:
    """The state in a checkpoint's folder by part, tensors of ``LAZY`` parts still on disk.

    Raises:
        OSError: it can't be read.
        UserError: it was not written by a run.
    """
    tensors = tensor_file.read([path / name for name in files if name != NAME])
    try:
        parts = _restored(json.loads((path / NAME).read_bytes()), tensors)
        return {name: part if name in LAZY else in_memory(part) for name, part in parts.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path / NAME} was not written by Burnish: {error}; use another checkpoint") from None


def _plain(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON has it; its tensors move into a dict by their names."""
    if isinstance(value, Tensor):
        tensors[where] = value
        return {TENSOR: where}
    if isinstance(value, dict):
        items = {key: _plain(item, f"{where}.{key}", tensors) for key, item in value.items()}
        if all(isinstance(key, str) for key in value) and not _is_tagged(value):
            return items
        return {PAIRS: [[_plain(key, "", tensors), item] for key, item in items.items()]}
    if isinstance(value, list | tuple):
        listed = [_plain(item, f"{where}[{i}]", tensors) for i, item in enumerate(value)]
        return listed if isinstance(value, list) else {TUPLE: listed}
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
        return tensors[content]
    if tag == NUMBER:
        return float(content)
    items = [_restored(item, tensors) for item in content]
    return tuple(items) if tag == TUPLE else dict(items)
