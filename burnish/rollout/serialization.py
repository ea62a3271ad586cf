"""Rollouts as dicts, lists and tensors that a checkpoint can hold, and back again, bit for bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.types.batch import Gathered
from burnish.types.columns import Column, LazyTensors
from burnish.types.completion import Completion, Encoded, Features
from burnish.types.media import Fit, Media
from burnish.types.prompt import Message, Part, Prompt
from burnish.types.rollout import Denoising, Failure, Requests, Rollouts, Scored, ScoredResponses, Scores
from burnish.types.statistics import Execution, Quote, ResponseStats
from burnish.utils.media import Unread

_TYPES = (
    Completion, Denoising, Encoded, Execution, Failure, Features, Fit, Gathered, Media, Message, Part,
    Prompt, Quote, Requests, ResponseStats, Scored, ScoredResponses, Scores,
)  # fmt: skip
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in _TYPES}
ONCE = (Features, Media, Prompt)  # rows may share these: they are stored once


def serialize(rollouts: Rollouts) -> dict[str, Any]:
    """Nested dicts and lists of tensors, numbers, strings, booleans and None."""
    packing = _Packing()
    whole = packing.plain(rollouts)
    return {"whole": whole, "shared": packing.shared}


def deserialize(plain: dict[str, Any]) -> Any:
    """The rollouts that ``serialize`` was given."""
    shared: list[Any] = []
    for one in plain["shared"]:  # what these share in turn comes before them
        shared.append(_object(one, shared))
    return _object(plain["whole"], shared)


class _Packing:
    def __init__(self) -> None:
        self.shared: list[Any] = []
        self._place: dict[int, int] = {}  # of objects that are stored once, by their identity

    def plain(self, value: Any) -> Any:
        if isinstance(value, Column):
            value = value.values()
        if isinstance(value, LazyTensors):
            value = dict(value)
        if isinstance(value, Unread):
            value = value.read()
        if isinstance(value, ONCE):
            if id(value) not in self._place:
                stored = self._fields(value)
                self._place[id(value)] = len(self.shared)
                self.shared.append(stored)
            return {"kind": "shared", "place": self._place[id(value)]}
        if type(value) in KINDS.values():
            return self._fields(value)
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if isinstance(value, tuple):
            return {"kind": "tuple", "items": [self.plain(item) for item in value]}
        if isinstance(value, dict):
            return {"kind": "dict", "items": {name: self.plain(item) for name, item in value.items()}}
        if isinstance(value, bytes):
            return {"kind": "bytes", "data": torch.from_numpy(np.frombuffer(value, np.uint8).copy())}
        assert value is None or isinstance(value, Tensor | bool | int | float | str), f"{type(value)} can't be saved"
        return value

    def _fields(self, value: Any) -> dict[str, Any]:
        fields = {field.name: self.plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, "fields": fields}


def _object(plain: Any, shared: list[Any]) -> Any:
    if isinstance(plain, list):
        return [_object(item, shared) for item in plain]
    if not isinstance(plain, dict):
        return plain
    kind: str = plain["kind"]
    if kind == "shared":
        return shared[plain["place"]]
    if kind == "tuple":
        return tuple(_object(item, shared) for item in plain["items"])
    if kind == "dict":
        return {name: _object(item, shared) for name, item in plain["items"].items()}
    if kind == "bytes":
        return plain["data"].numpy().tobytes()
    return KINDS[kind](**{name: _object(value, shared) for name, value in plain["fields"].items()})
