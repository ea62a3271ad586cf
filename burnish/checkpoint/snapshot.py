"""The state of a run as plain data and this rank's pieces of its tensors, to be written while training continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from burnish.checkpoint.state_file import Reference
from burnish.checkpoint.tensor_file import Piece
from burnish.rl.algorithm import Metrics


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Content of a checkpoint, as far as this rank writes it."""

    update: int
    parts: dict[str, Any]  # nested plain data, with references to the tensors
    pieces: dict[str, Piece]  # of tensors by name; on their devices, or copies on the CPU
    size: int  # approximate bytes of what all ranks write
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
        rank: int,
    ) -> Snapshot:
        """Take a snapshot; arguments as for ``CheckpointStore.save``.

        With ``copy`` every tensor that this rank writes is copied to CPU memory; otherwise tensors are shared.
        """
        tensors: dict[str, Tensor] = {}
        parts = {name: _extract(value, name, tensors) for name, value in state.items()}
        pieces = {}
        for number, (name, tensor) in enumerate(tensors.items()):
            piece = Piece.of(tensor, rank=rank, number=number)
            if piece is not None:
                pieces[name] = piece.copied() if copy else piece
        return cls(
            update=update,
            parts=parts,
            pieces=pieces,
            size=_size(parts) + sum(tensor.nbytes for tensor in tensors.values()),
            identity=dict(identity),
            score=score,
            unvalidated=None if unvalidated is None else dict(unvalidated),
        )


def _extract(value: Any, where: str, into: dict[str, Tensor]) -> Any:
    """The value with its tensors moved ``into`` a dict, and references in their places."""
    if isinstance(value, Tensor):
        into[where] = value
        return Reference(where)
    if isinstance(value, dict):
        return {key: _extract(item, f"{where}.{key}", into) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_extract(item, f"{where}[{i}]", into) for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    kind = type(value)
    assert kind in (int, float, bool, str, type(None)), f"{where} is a {kind.__name__}, not plain data"
    return value


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 8
