"""What operations return for fake tensors, found out once for arguments of the same shapes.

PyTorch remembers some of it too, and looks at every property of every tensor each time; that took most of a forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

aten = torch.ops.aten
UNSURE = object()
SIMPLE = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
LIFTED = (aten.lift.default, aten.lift_fresh.default, aten.lift_fresh_copy.default)
CHANGED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor that an operation makes."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    view: bool  # of the one tensor that the operation takes


@dataclass(frozen=True, slots=True)
class _Given:
    """An argument that an operation returns: it has written to it."""

    place: int


class _Unlike(Exception):
    """Arguments or results tell nothing about another call."""


class KnownResults:
    """Results of operations on fake tensors; of calls that are alike only the first one asks PyTorch."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._known: dict[Any, Any] = {}  # UNSURE of what has to be asked for each time
        self._attributes: dict[torch.device, dict[str, Any]] = {}  # of a fake tensor

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What ``func`` returns: tensors with the shapes, strides and storages that PyTorch gives them.

        Args:
            func: an overload of an operation.
            args, kwargs: as a dispatch mode gets them.
        """
        key = self._key(func, args, kwargs)
        known = UNSURE if key is None else self._known.get(key)
        if known is not None and known is not UNSURE:
            return self._again(known, args)
        found = func(*args, **kwargs)
        if known is None:
            try:
                self._known[key] = self._result(func, args, found)
            except _Unlike:
                self._known[key] = UNSURE
        return found

    def _key(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Equal for calls whose results have the same shapes; None where values may decide."""
        if not _is_regular(func):
            return None
        key = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        try:
            self._describe(args, key, real=not func._schema.is_mutable)
            if kwargs:
                key += kwargs
                self._describe(kwargs.values(), key, real=False)
        except _Unlike:
            return None
        return tuple(key)

    def _describe(self, args: Any, key: list[Any], *, real: bool) -> None:
        for one in args:
            kind = type(one)
            if kind is FakeTensor:
                if one.fake_mode is not self.mode or one.constant is not None or one.layout is not torch.strided:
                    raise _Unlike
                key += one.dtype, one.shape, one.stride(), one.storage_offset(), one.requires_grad, one._fake_device
            elif kind in SIMPLE:
                key += kind, one  # for 1, 1.0 and True are equal
            elif kind in (list, tuple, torch.Size):
                key += kind, len(one)
                self._describe(one, key, real=real)
            elif kind is Tensor and real and one.layout is torch.strided:  # of which PyTorch sees no values, either
                key += kind, one.dtype, one.shape, one.stride(), one.device
            else:
                raise _Unlike

    def _result(self, func: Any, args: Any, found: Any) -> Any:
        if isinstance(found, list | tuple):
            return type(found), tuple(self._result(func, args, one) for one in found)
        if found is None or type(found) in (bool, int):
            return (found,)
        if type(found) is not FakeTensor or found.constant is not None or found.dtype.is_complex:
            raise _Unlike
        for place, one in enumerate(args):
            if one is found:
                return _Given(place)
        shape, stride, offset = tuple(found.shape), found.stride(), int(found.storage_offset())
        made = _Made(shape, stride, offset, found.dtype, found.fake_device, _views(func))
        like = self._again(made, args)
        same = torch._C._dispatch_key_set(like) == torch._C._dispatch_key_set(found)
        storage = found.untyped_storage()
        if not same or found.requires_grad or storage.nbytes() != like.untyped_storage().nbytes():
            raise _Unlike
        given = {one.untyped_storage()._cdata for one in args if isinstance(one, Tensor)}
        if (storage._cdata in given) != made.view:
            raise _Unlike
        return made

    def _again(self, known: Any, args: Sequence[Any]) -> Any:
        kind = type(known)
        if kind is _Made:
            return self._made(known, args)
        if kind is _Given:
            return args[known.place]
        if len(known) == 1:
            return known[0]
        sort, several = known
        return sort([self._again(one, args) for one in several])

    def _made(self, known: _Made, args: Sequence[Any]) -> FakeTensor:
        empty = torch.empty_strided(known.shape, known.stride, dtype=known.dtype, device="meta")
        if known.view:
            (base,) = [one for one in args if isinstance(one, Tensor)]
            empty.set_(base.untyped_storage(), known.offset, known.shape, known.stride)
        device = known.device
        if device not in self._attributes:
            self._attributes[device] = dict(vars(FakeTensor(self.mode, empty, device)))
        made: FakeTensor = Tensor._make_subclass(
            FakeTensor, empty, False, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_throw_on_mutable_data_ptr(made)
        vars(made).update(self._attributes[device])
        return made


def _views(func: Any) -> bool:
    return bool(func.is_view) or func is aten._unsafe_view.default


@cache
def _is_regular(func: Any) -> bool:
    """Whether the shapes of results follow from those of arguments, and nothing but values changes besides."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten" or func in LIFTED:
        return False
    if CHANGED & set(func.tags):
        return func is aten.index.Tensor
    arguments = func._schema.arguments
    if any(one.is_out for one in arguments):
        return False
    if not _views(func):
        return True
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    tensors = [str(one.type) for one in arguments if "Tensor" in str(one.type)]
    return tensors == ["Tensor"] and not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), composite)
