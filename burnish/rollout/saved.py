"""Rollouts in checkpoints: as nested dicts and lists of tensors, numbers, strings, booleans and None."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.rollout.sources import RolloutRequest
from burnish.types.batch import Gathered
from burnish.types.columns import Column, LazyTensors
from burnish.types.completion import Completion, Encoded, Features, PartialResponse
from burnish.types.media import Fit, Media
from burnish.types.prompt import Message, Part, Prompt
from burnish.types.rollout import Denoising, Failure, Requests, Rollouts, Scored, ScoredResponses, Scores
from burnish.types.samples import Quote, ResponseStats
from burnish.utils.media import Unread

BATCHES = ("ahead", "put_aside", "replay")  # of the state of a source


def plain(source: dict[str, Any]) -> dict[str, Any]:
    """The state of a source, fit to be saved."""
    whole = {name: list(map(serialize, source.get(name, []))) for name in BATCHES}
    return {name: value for name, value in (source | whole).items() if name not in BATCHES or value}


def made(source: dict[str, Any]) -> dict[str, Any]:
    """The opposite of ``plain``."""
    return source | {name: list(map(deserialize, source[name])) for name in BATCHES if name in source}


_TYPES = (
    Completion, Denoising, Encoded, Failure, Features, Fit, Gathered, Media, Message, Part,
    PartialResponse, Prompt, Quote, Requests, ResponseStats, RolloutRequest, Scored, ScoredResponses, Scores,
)  # fmt: skip
MADE: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in _TYPES} | {
    "dict": dict,
    "tuple": lambda **items: tuple(items.values()),
    "bytes": lambda data: data.numpy().tobytes(),
}
ONCE = (Features, Media, Prompt)  # rows may share these: they are stored once
ELSEWHERE: dict[type, Callable[[Any], Any]] = {Column: Column.values, LazyTensors: dict, Unread: lambda one: one.read()}


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
        value = next((read(value) for kind, read in ELSEWHERE.items() if isinstance(value, kind)), value)
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if not isinstance(value, ONCE):
            return self._fields(value)
        if id(value) not in self._place:
            stored = self._fields(value)
            self._place[id(value)] = len(self.shared)
            self.shared.append(stored)
        return {"place": self._place[id(value)]}

    def _fields(self, value: Any) -> Any:
        if isinstance(value, bytes):
            fields: dict[str, Any] = {"data": torch.from_numpy(np.frombuffer(value, np.uint8).copy())}
        elif isinstance(value, tuple):
            fields = {str(place): item for place, item in enumerate(value)}
        elif isinstance(value, dict):
            fields = value
        elif isinstance(value, _TYPES):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        else:
            assert value is None or isinstance(value, Tensor | bool | int | float | str), (
                f"{type(value)} can't be saved"
            )
            return value
        return {"kind": type(value).__name__, "fields": {name: self.plain(item) for name, item in fields.items()}}


def _object(plain: Any, shared: list[Any]) -> Any:
    if isinstance(plain, list):
        return [_object(item, shared) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if "place" in plain:
        return shared[plain["place"]]
    return MADE[plain["kind"]](**{name: _object(value, shared) for name, value in plain["fields"].items()})
