"""The state of a run as plain data, to be written while training continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from burnish.algorithms.base import Metrics
from burnish.checkpoint import shard_files


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Content of a checkpoint; of sharded tensors, this rank's shards."""

    update: int
    parts: dict[str, Any]  # nested plain data; tensors on the CPU
    sharded: dict[str, Tensor]  # by name
    identity: dict[str, str]
    score: float | None
    unvalidated: Metrics | None = None

    @classmethod
    def of(
        cls,
        update: int,
        state: dict[str, Any],
        *,
        identity: dict[str, str],
        score: float | None,
        unvalidated: Metrics | None = None,
        copy: bool,
    ) -> Snapshot:
        """Take a snapshot; arguments as for ``CheckpointStore.save``.

        With ``copy`` every tensor is copied to CPU memory; otherwise tensors on the CPU are shared.
        """
        sharded: dict[str, Tensor] = {}
        taken = {name: shard_files.extract(value, name, sharded) for name, value in state.items()}
        return cls(
            update=update,
            parts={name: _portable(value, name, copy=copy) for name, value in taken.items()},
            sharded={name: value.detach().to("cpu", copy=True) for name, value in sharded.items()} if copy else sharded,
            identity=dict(identity),
            score=score,
            unvalidated=None if unvalidated is None else dict(unvalidated),
        )

    @property
    def size(self) -> int:
        """Approximate bytes."""
        return _size(self.parts) + _size(self.sharded)


def _portable(value: Any, where: str, *, copy: bool) -> Any:
    """The value with its tensors on the CPU, detached, and without storage beyond their elements."""
    if isinstance(value, Tensor):
        if copy:
            return value.detach().to("cpu", copy=True)
        value = value.detach().cpu()
        return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
    if isinstance(value, dict):
        return {key: _portable(item, f"{where}.{key}", copy=copy) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_portable(item, f"{where}[{i}]", copy=copy) for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    kind = type(value)
    assert kind in (int, float, bool, str, type(None)), f"{where} is a {kind.__name__}, not plain data"
    return value


def _size(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 8
