"""Whole numbers on a GPU that the CPU knows too: what a class reads from them is not waited for."""

from __future__ import annotations

import copy
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from burnish.types.batch import to_device

LARGEST = 2**20  # elements: what has more is not computed on the CPU, too
# functions, by their names without the underscores of operators
READ = {"tolist", "item", "equal", "int", "index", "bool", "float"}
# how many numbers these give depends on what they are given, so that a GPU would be waited for
SIZED = {"nonzero", "unique_consecutive", "repeat_interleave", "masked_select"}
SHAPED = {
    "view", "reshape", "expand", "repeat", "split", "split_with_sizes", "pad", "upsample_bilinear2d", "new_zeros",
    "new_ones", "new_full", "new_empty",
}  # fmt: skip
INDEXED = {"getitem", "setitem", "index_put"}
# of whole numbers they give the same on every device; those that may choose among equal ones are not here
SAME = READ | SIZED | {
    "getitem", "unbind", "view", "reshape", "flatten", "squeeze", "unsqueeze", "expand", "repeat", "transpose",
    "permute", "contiguous", "clone", "detach", "split", "chunk", "select", "narrow", "flip", "roll", "cat", "stack",
    "pad", "where", "masked_fill", "meshgrid", "index_select", "gather", "isin", "to", "cpu", "long", "type",
    "new_ones", "new_zeros", "new_full", "ones_like", "zeros_like", "full_like", "sum", "prod", "abs", "cumsum",
    "diff", "amax", "amin", "max", "min", "any", "all", "_is_all_true", "add", "radd", "sub", "rsub", "mul", "rmul",
    "floordiv", "floor_divide", "div", "rfloordiv", "mod", "remainder", "neg", "eq", "ne", "lt", "le", "gt", "ge",
    "and", "or", "xor", "invert", "logical_and", "logical_or", "logical_not",
}  # fmt: skip


class Known(Tensor):
    """Whole numbers on a GPU, with their values on the CPU.

    What is computed from such tensors alone is one too, and is read from the CPU. Among others they are tensors as all
    are: the GPU has the same numbers. One that was written to is read from the GPU.
    """

    numbers: Tensor
    version: int  # of the tensor that has these values

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(self.as_subclass(Tensor), memo)  # a class may keep one, and be copied

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.__name__.removeprefix("__").removesuffix("__"), kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if name == "expand_as":  # which reads nothing of the other but its shape
                name, func, args = "expand", Tensor.expand, (args[0], args[1].shape)
            if name in SHAPED:
                args, kwargs = (args[0], *tree_map(_size, args[1:])), tree_map(_size, kwargs)
            leaves = tree_leaves((args, kwargs))
            chooses = name in ("max", "min") and len(leaves) > 1  # among equal ones
            if name not in SAME or chooses or not all(_is_known(one) for one in leaves if isinstance(one, Tensor)):
                if name in INDEXED and len(args) > 1:
                    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
                    args = (args[0], tuple(chain.from_iterable(map(_places, parts))), *args[2:])
                return func(*args, **kwargs)
            given, named = tree_map(_on_cpu, (args, kwargs))
            if name in READ and not isinstance(value := func(*given, **named), Tensor):  # ``x.int()`` is one
                return value
            if name == "cpu":
                return given[0].clone()
            if name in SIZED or (name == "getitem" and any(map(_is_mask, leaves[1:]))):
                return tree_map(partial(upload, device=leaves[0].device), func(*given, **named))
            found = func(*args, **kwargs)
            return tree_map(_known, found, func(*given, **named)) if all(map(_can_be, tree_leaves(found))) else found


def upload(value: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of the CPU on a device; whole numbers on a GPU so that the CPU still knows them."""
    moved = to_device(value, device)
    return _known(moved, value) if type(value) is Tensor and value.device.type == "cpu" and _can_be(moved) else moved


def _known(found: Any, numbers: Tensor) -> Known:
    made: Known = found.as_subclass(Known)
    made.numbers, made.version = numbers, found._version
    return made


def _can_be(found: Tensor) -> bool:
    whole = not found.is_floating_point() and not found.is_complex()
    return whole and found.is_cuda and found.numel() <= LARGEST and not found.is_inference()  # which have no version


def _is_known(value: Any) -> bool:
    return isinstance(value, Known) and value._version == value.version


def _is_mask(value: Any) -> bool:
    return _is_known(value) and value.dtype == torch.bool and value.ndim > 0


def _size(value: Any) -> Any:
    return int(value.numbers) if _is_known(value) and value.ndim == 0 else value


def _on_cpu(value: Any) -> Any:
    """An argument of a function that runs on the CPU."""
    if isinstance(value, Known):
        return value.numbers
    return "cpu" if isinstance(value, torch.device) or str(value).startswith("cuda") else value


def _places(index: Any) -> list[Any]:
    """A part of an index; the places of a mask instead of it, whose number the GPU would have to be asked for."""
    if not _is_mask(index) or not index.numbers.is_contiguous():  # one that was expanded over channels has too many
        return [index]
    return [to_device(place, index.device) for place in index.numbers.nonzero(as_tuple=True)]
