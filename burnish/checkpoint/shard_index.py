"""Reads torch's index of a checkpoint's shards without executing anything.

torch.distributed.checkpoint writes the index as a pickle, which could call any function. Here every object of the
pickle becomes an inert record, which is checked before any memory is allocated for it.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, Metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from burnish.utils.errors import UserError

NAME = ".metadata"
METADATA, FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
MODULES = (METADATA, FILES, "torch", "torch.serialization", "pathlib", "pathlib._local", "collections")
UNUSED = (  # opcodes that reach outside the pickle, or allocate memory that the file does not fill
    pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID, pickle.BINPERSID, pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX,
    pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER,
)  # fmt: skip


class ShardReader(FileSystemReader):
    """Reads tensors of a folder of shards by its checked index."""

    def __init__(self, folder: Path, sizes: Mapping[str, int]) -> None:
        super().__init__(folder)
        self.index = read_index(folder, sizes)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        assert self.index.storage_meta is not None
        self.index.storage_meta.load_id = self.load_id
        return self.index


def read_index(folder: Path, sizes: Mapping[str, int]) -> Metadata:
    """The index of a folder of shards.

    Args:
        folder: of the shards.
        sizes: bytes of every file in it.

    Raises:
        OSError: it can't be read.
        UserError: it is damaged, or lists missing data.
    """
    with (folder / NAME).open("rb") as file:
        try:
            return _metadata(_Reader(file).load(), sizes)
        except OSError:
            raise
        except Exception as error:  # the file may be forged
            raise UserError(
                f"{folder / NAME} is no index of these shards: {error or type(error).__name__}; nothing of it was "
                "executed; use another checkpoint"
            ) from None


class _Record:
    """Stands for an object of the pickle, with its arguments and state."""

    named = ""
    state: Any = None

    def __new__(cls, *arguments: Any) -> _Record:
        made = object.__new__(cls)
        made.arguments = arguments
        return made

    arguments: tuple[Any, ...] = ()

    def __init__(self, *arguments: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state


# the unpickler in Python, which does not allocate memory by sizes that the file claims
class _Reader(pickle._Unpickler):  # type: ignore[name-defined,misc,unused-ignore]
    dispatch = {code: load for code, load in pickle._Unpickler.dispatch.items() if bytes([code]) not in UNUSED}  # type: ignore[attr-defined,unused-ignore]  # noqa: RUF012

    def find_class(self, module: str, name: str) -> type[_Record]:
        if module not in MODULES:
            raise ValueError(f"it refers to {module}.{name}")
        return type("_Named", (_Record,), {"named": f"{module}.{name}"})


def _metadata(value: Any, sizes: Mapping[str, int]) -> Metadata:
    about = _fields(value, f"{METADATA}.Metadata")
    tensors: dict[str, Any] = {_text(name): _tensor(one) for name, one in about["state_dict_metadata"].items()}
    claimed = sum(math.prod(one.size) * one.properties.dtype.itemsize for one in tensors.values())
    if claimed > sum(sizes.values()):
        raise ValueError(f"its tensors have {claimed} bytes, and its files {sum(sizes.values())}")
    storage = dict(_storage(index, where, sizes) for index, where in about["storage_data"].items())
    for name, one in tensors.items():
        for chunk in one.chunks:
            if MetadataIndex(name, chunk.offsets) not in storage:
                raise ValueError(f"a chunk of {name} is in no file")
    return Metadata(state_dict_metadata=tensors, storage_data=storage, storage_meta=StorageMeta())


def _tensor(value: Any) -> TensorStorageMetadata:
    about = _fields(value, f"{METADATA}.TensorStorageMetadata")
    properties = _record(about["properties"], f"{METADATA}.TensorProperties").state
    dtype = getattr(torch, str(getattr(properties[0], "named", "")).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor has no dtype")
    size = _size(about["size"])
    chunks = []
    for one in about["chunks"]:
        chunk = _fields(one, f"{METADATA}.ChunkStorageMetadata")
        offsets, sizes = _size(chunk["offsets"]), _size(chunk["sizes"])
        if not len(offsets) == len(sizes) == len(size):
            raise ValueError("a chunk of a tensor has other dimensions than the tensor")
        if any(start + length > end for start, length, end in zip(offsets, sizes, size, strict=True)):
            raise ValueError("a chunk of a tensor is outside of it")
        chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
    if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(size):
        raise ValueError("chunks of a tensor are missing")
    return TensorStorageMetadata(properties=TensorProperties(dtype=dtype), size=size, chunks=chunks)


def _storage(index: Any, where: Any, sizes: Mapping[str, int]) -> tuple[MetadataIndex, _StorageInfo]:
    chunk, about = _fields(index, f"{METADATA}.MetadataIndex"), _fields(where, f"{FILES}._StorageInfo")
    file, start, length = about["relative_path"], about["offset"], about["length"]
    if not isinstance(file, str) or file not in sizes:
        raise ValueError(f"it names a file that does not belong to the checkpoint: {file!r:.80}")
    if not (_count(start) and _count(length)) or start + length > sizes[file]:
        raise ValueError(f"{file} is too short")
    if about.get("transform_descriptors"):
        raise ValueError("it has transforms, which Burnish does not write")
    number = chunk.get("index")
    found = MetadataIndex(_text(chunk["fqn"]), _size(chunk["offset"]), number if _count(number) else None)
    return found, _StorageInfo(file, start, length)


def _record(value: Any, named: str) -> _Record:
    if not isinstance(value, _Record) or value.named != named:
        raise ValueError(f"it has something other than a {named.rpartition('.')[2]}")
    return value


def _fields(value: Any, named: str) -> dict[str, Any]:
    state = _record(value, named).state
    if not isinstance(state, dict):
        raise ValueError(f"{named.rpartition('.')[2]} is empty")
    return state


def _size(value: Any) -> torch.Size:
    (numbers,) = _record(value, "torch.Size").arguments
    if not isinstance(numbers, tuple) or not all(map(_count, numbers)):
        raise ValueError("a shape is not of integers")
    return torch.Size(numbers)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a tensor has no name")
    return value


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
