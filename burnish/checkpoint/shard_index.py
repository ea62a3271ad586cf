"""torch's list of the shards in a checkpoint, read as data: nothing that it names is imported or called.

torch.distributed.checkpoint writes that list as a pickle, which could name any function of any module. Here every
object in it becomes an inert record, and what the records say is checked before anything is made for it.
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
UNUSED = (  # ways of a pickle to reach what is outside of it, and to ask for memory that it does not fill
    pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID, pickle.BINPERSID, pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX,
    pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER,
)  # fmt: skip


class ShardReader(FileSystemReader):
    """Reads tensors of a folder of shards, by a list that was checked."""

    def __init__(self, folder: Path, sizes: Mapping[str, int]) -> None:
        """Read the list.

        Args:
            folder: of the shards.
            sizes: bytes of every file in it.

        Raises:
            OSError: it can't be read.
            UserError: it is damaged, or lists what is not there.
        """
        super().__init__(folder)
        self.index = read_index(folder, sizes)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        assert self.index.storage_meta is not None
        self.index.storage_meta.load_id = self.load_id
        return self.index


def read_index(folder: Path, sizes: Mapping[str, int]) -> Metadata:
    """The list of the shards in a folder; see ``ShardReader``."""
    with (folder / NAME).open("rb") as file:
        try:
            return _metadata(_Reader(file).load(), sizes)
        except OSError:
            raise
        except Exception as error:  # anything may be wrong with what somebody else has made up
            raise UserError(
                f"{folder / NAME} is no list of these shards: {error or type(error).__name__}; nothing of it was run; "
                "use another checkpoint"
            ) from None


class _Record:
    """What stands in the place of an object, and what the object would have been made of."""

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


# the one that is written in Python: it fills no memory because a number in the file is large
class _Reader(pickle._Unpickler):  # type: ignore[name-defined,misc,unused-ignore]
    dispatch = {code: load for code, load in pickle._Unpickler.dispatch.items() if bytes([code]) not in UNUSED}  # type: ignore[attr-defined,unused-ignore]  # noqa: RUF012

    def find_class(self, module: str, name: str) -> type[_Record]:
        if module not in MODULES:
            raise ValueError(f"it names {module}.{name}")
        return type("_Named", (_Record,), {"named": f"{module}.{name}"})


def _metadata(said: Any, sizes: Mapping[str, int]) -> Metadata:
    about = _fields(said, f"{METADATA}.Metadata")
    tensors: dict[str, Any] = {_text(name): _tensor(one) for name, one in about["state_dict_metadata"].items()}
    promised = sum(math.prod(one.size) * one.properties.dtype.itemsize for one in tensors.values())
    if promised > sum(sizes.values()):
        raise ValueError(f"its tensors have {promised} bytes, and its files {sum(sizes.values())}")
    places = dict(_place(index, where, sizes) for index, where in about["storage_data"].items())
    for name, one in tensors.items():
        for chunk in one.chunks:
            if MetadataIndex(name, chunk.offsets) not in places:
                raise ValueError(f"a part of {name} is in no file")
    return Metadata(state_dict_metadata=tensors, storage_data=places, storage_meta=StorageMeta())


def _tensor(said: Any) -> TensorStorageMetadata:
    about = _fields(said, f"{METADATA}.TensorStorageMetadata")
    properties = _made(about["properties"], f"{METADATA}.TensorProperties").state
    dtype = getattr(torch, str(getattr(properties[0], "named", "")).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor has no type")
    size = _size(about["size"])
    chunks = []
    for part in about["chunks"]:
        piece = _fields(part, f"{METADATA}.ChunkStorageMetadata")
        offsets, sizes = _size(piece["offsets"]), _size(piece["sizes"])
        if not len(offsets) == len(sizes) == len(size):
            raise ValueError("a part of a tensor has other axes than the tensor")
        if any(start + length > end for start, length, end in zip(offsets, sizes, size, strict=True)):
            raise ValueError("a part of a tensor is outside of it")
        chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
    if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(size):
        raise ValueError("parts of a tensor are missing")
    return TensorStorageMetadata(properties=TensorProperties(dtype=dtype), size=size, chunks=chunks)


def _place(index: Any, where: Any, sizes: Mapping[str, int]) -> tuple[MetadataIndex, _StorageInfo]:
    part, about = _fields(index, f"{METADATA}.MetadataIndex"), _fields(where, f"{FILES}._StorageInfo")
    file, start, length = about["relative_path"], about["offset"], about["length"]
    if not isinstance(file, str) or file not in sizes:
        raise ValueError(f"it names a file that does not belong to the checkpoint: {file!r:.80}")
    if not (_count(start) and _count(length)) or start + length > sizes[file]:
        raise ValueError(f"{file} ends before what is to be in it")
    if about.get("transform_descriptors"):
        raise ValueError("it is packed in a way that Burnish does not write")
    number = part.get("index")
    found = MetadataIndex(_text(part["fqn"]), _size(part["offset"]), number if _count(number) else None)
    return found, _StorageInfo(file, start, length)


def _made(said: Any, named: str) -> _Record:
    if not isinstance(said, _Record) or said.named != named:
        raise ValueError(f"something else stands where {named.rpartition('.')[2]} belongs")
    return said


def _fields(said: Any, named: str) -> dict[str, Any]:
    state = _made(said, named).state
    if not isinstance(state, dict):
        raise ValueError(f"{named.rpartition('.')[2]} is empty")
    return state


def _size(said: Any) -> torch.Size:
    (numbers,) = _made(said, "torch.Size").arguments
    if not isinstance(numbers, tuple) or not all(map(_count, numbers)):
        raise ValueError("a shape is not of whole numbers")
    return torch.Size(numbers)


def _text(said: Any) -> str:
    if not isinstance(said, str):
        raise ValueError("a tensor has no name")
    return said


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
