"""Headers of safetensors files: what can't be is told with the tensor, before a library reads the file."""

from __future__ import annotations

import json
import re
import struct

import pytest
import torch
from safetensors.torch import save_file

from burnish.utils import tensor_headers
from burnish.utils.tensor_headers import header_problem

ONE = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def written(path, header, size=24):
    content = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + bytes(size))
    return path


def test_what_the_library_writes_is_right(tmp_path):
    kinds = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn)
    tensors = {str(kind): torch.zeros(3, 2, dtype=kind) for kind in kinds} | {"empty": torch.zeros(0, 4)}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    assert header_problem(tmp_path / "a.safetensors") == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"shape": [10**9, 10**9]}, r"damaged header: 'a' of F32 \[1000000000, 1000000000\] has 24 bytes, not 4e\+18"),
        ({"shape": [-2, -3]}, r"'a' has shape \[-2, -3\]"),
        ({"shape": "x"}, "'a' has shape 'x'"),
        ({"dtype": 32}, "'a' has dtype 32"),
        ({"data_offsets": [24, 0]}, r"'a' has data_offsets \[24, 0\]"),
        ({"data_offsets": [0, 12, 24]}, "'a' has data_offsets"),
        ({"data_offsets": [8, 32]}, "'a' begins at byte 8, but tensors begin at 0"),
        ({"dtype": "F7", "data_offsets": [0, 2**62]}, "is truncated: 4611686018427387880 of"),
        ({"dtype": "F7", "data_offsets": [0, 8]}, "has 16 bytes behind its last tensor"),
    ],
)
def test_a_tensor_that_can_not_be_is_named(tmp_path, change, why):
    problem = header_problem(written(tmp_path / "a.safetensors", {"a": ONE | change}))
    assert re.search(why, problem), problem


def test_tensors_that_share_bytes_are_refused(tmp_path):
    problem = header_problem(written(tmp_path / "a.safetensors", {"a": ONE, "b": ONE}))
    assert problem == "has a damaged header: 'b' begins at byte 0, but 'a' ends at 24"


def test_more_tensors_than_any_model_has_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_headers, "MOST", 1)
    assert header_problem(written(tmp_path / "a.safetensors", {"a": ONE, "b": ONE})) == "lists 2 tensors, more than 1"
