"""Equality in type and in every bit, however deep."""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.types.columns import Column, LazyTensors


def same(one: Any, other: Any) -> None:
    """Fail where two things differ; what is read only when it is needed is read."""
    one, other = ((value.values() if isinstance(value, Column) else value) for value in (one, other))
    one, other = ((dict(value) if isinstance(value, LazyTensors) else value) for value in (one, other))
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.numel():
            assert torch.equal(*(tensor.contiguous().view(-1).view(torch.uint8) for tensor in (one, other)))
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif dataclasses.is_dataclass(one):
        for field in (field for field in dataclasses.fields(one) if field.compare):
            same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            same(*pair)
    elif isinstance(one, dict):
        same(list(one.items()), list(other.items()))
    else:
        assert one == other or one != one
