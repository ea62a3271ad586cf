"""Checkpoints of format 1, which earlier versions wrote: files of torch.save, and shards of torch.distributed."""

from __future__ import annotations

import errno
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish.utils.errors import UserError

FOLDER = "shards"
MARK = "lies in the shards"


def read(path: Path, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The saved state by part, with full tensors on the CPU; nothing of the checkpoint is executed.

    Args:
        path: of the checkpoint.
        sizes: bytes of its files, by name.

    Raises:
        OSError: a file can't be read.
        UserError: the files were not written by a run.
    """
    parts = {name.removesuffix(".pt"): _part(path / name) for name in sizes if name.endswith(".pt")}
    shards = {name.removeprefix(f"{FOLDER}/"): size for name, size in sizes.items() if name.startswith(f"{FOLDER}/")}
    if not shards:
        return parts
    restored: dict[str, Any] = _restore(parts, _shards(path / FOLDER, shards))
    return restored


def _part(file: Path) -> Any:
    """Content of a file of plain data and tensors."""
    try:
        with zipfile.ZipFile(file) as packed:  # torch stores without compression; anything else is a zip bomb
            if sum(one.file_size for one in packed.infolist()) > file.stat().st_size:
                raise ValueError("it is compressed")
        return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # the file may be forged
        why = str(error).split("\n")[0] or type(error).__name__
        raise UserError(
            f"{file} has something other than tensors, numbers and text: {why}; nothing of it was executed; "
            "use another checkpoint"
        ) from None


def _restore(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Nested data with tensors in place of references."""
    if isinstance(value, dict):
        if value.keys() == {MARK}:
            where = value[MARK]
            if not isinstance(where, str) or where not in tensors:
                raise UserError(f"a tensor of the checkpoint is missing: {where!r:.80}; use another checkpoint")
            return tensors[where]
        return {key: _restore(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_restore(item, tensors) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _shards(folder: Path, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Full tensors by name."""
    from torch.distributed.checkpoint import load
    from torch.distributed.checkpoint.api import CheckpointException

    from burnish.checkpoint.shard_index import ShardReader

    reader = ShardReader(folder, sizes)
    known: dict[str, Any] = reader.index.state_dict_metadata
    tensors: dict[str, Any] = {
        name: torch.empty(about.size, dtype=about.properties.dtype) for name, about in known.items()
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # intended: no_dist
        try:
            load(tensors, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            raise _cause(error, folder) from None
    return tensors


def _cause(error: Any, folder: Path) -> OSError:
    """The OSError behind an exception of torch's reader."""
    failures = list(error.failures.values())
    for wrapped in failures:
        found = wrapped[0] if isinstance(wrapped, tuple) else wrapped
        while found is not None:
            if isinstance(found, OSError):
                return OSError(found.errno or errno.EIO, found.strerror or str(found), str(folder))
            found = found.__cause__ or found.__context__
    reasons = "; ".join(str(one[0] if isinstance(one, tuple) else one) for one in failures)
    return OSError(errno.EIO, reasons, str(folder))
