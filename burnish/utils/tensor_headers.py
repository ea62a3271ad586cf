"""Headers of safetensors files: whether what they say of their tensors can be, before any library maps them."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from burnish.utils.json_text import parse_json

LONGEST = 100 << 20  # bytes of a header: the limit of safetensors
MOST = 200_000  # tensors of a file; models of a trillion weights have half as many in all of their files
ABOUT = "__metadata__"  # the one entry that is no tensor
BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Of an element; of other precisions the library knows."""
WHOLE = {"BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64"}  # types without fractions
PACKED = 8  # numbers of four bits that an element of those may hold


def header_problem(file: Path) -> str:
    """Why a safetensors file can't be read; "" if its header and its size agree."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            head = opened.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else LONGEST + 1
            if length > LONGEST or 8 + length > size:
                return f"is no safetensors file, or truncated: {size} bytes"
            header = opened.read(length)
        if (count := header.count(b'"data_offsets"')) > MOST:
            return f"lists {count} tensors, more than {MOST}"
        return _disagreement(parse_json(header), size - 8 - length)
    except OSError as error:
        return f"can't be read: {error.strerror}"
    except (ValueError, AttributeError):
        return "has a damaged header"


def _disagreement(tensors: Mapping[str, Any], size: int) -> str:
    """What is wrong with the places of tensors in the ``size`` bytes behind a header; "" if nothing is."""
    places = {}
    for name, one in tensors.items():
        if name != ABOUT:
            if said := _refusal(one):
                return f"has a damaged header: {name!r:.80} {said}"
            places[name] = one["data_offsets"]
    end, before = 0, ""
    for name, (start, stop) in sorted(places.items(), key=lambda place: place[1]):
        if start != end:
            where = f"{before!r:.80} ends" if before else "tensors begin"
            return f"has a damaged header: {name!r:.80} begins at byte {start}, but {where} at {end}"
        end, before = stop, name
    if size < end:
        return f"is truncated: {end - size} of {end} bytes of its tensors are missing"
    return f"has {size - end} bytes behind its last tensor" if size > end else ""


def _refusal(tensor: Any) -> str:
    """Why there is no such tensor, by its entry of a header."""
    if not isinstance(tensor, dict):
        return f"is {tensor!r:.40}, no tensor"
    kind, shape, place = (tensor.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str):
        return f"has dtype {kind!r:.40}"
    if not _whole(shape):
        return f"has shape {shape!r:.40}"
    if not _whole(place) or len(place) != 2 or place[0] > place[1]:
        return f"has data_offsets {place!r:.80}"
    wide = BYTES.get(kind)
    if wide is not None and (wanted := math.prod(shape) * wide) != place[1] - place[0]:
        return f"of {kind} {shape!r:.80} has {place[1] - place[0]} bytes, not {wanted:.6g}"
    return ""


def _whole(value: Any) -> TypeGuard[list[int]]:
    """Whether this is a list of whole numbers, none of them negative."""
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


def contents(folder: Path, files: str = "*.safetensors") -> dict[str, int]:
    """How many numbers each tensor can hold that the safetensors files of a folder list, by name.

    Files that can't be read count for nothing.
    """
    found = {}
    for file in sorted(folder.glob(files)):
        with suppress(OSError, ValueError, AttributeError, TypeError, struct.error):
            with file.open("rb") as opened:
                header = parse_json(opened.read(min(struct.unpack("<Q", opened.read(8))[0], LONGEST)))
            for name, one in header.items():
                if name != ABOUT:
                    found[name] = math.prod(one["shape"]) * (PACKED if one["dtype"] in WHOLE else 1)
    return found
