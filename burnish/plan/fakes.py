"""What stands in for memory and processes: tensors without values, quantised layers without libraries, absent ranks.

Only weights, and large tensors of floating-point numbers, are fake, and whatever is computed from them; operations on
these compute nothing. Schedules, masks, indices and token ids stay real, so that the code that reads them takes its
usual branches.

Sizes of quantised layers are those of the formats: bitsandbytes' NormalFloat keeps a byte for two weights, a byte of
scale for 64 of them and a float32 for 256 scales; torchao's int8 and fp8 keep a byte for each weight and a float32 for
each row, int8 one more byte for a row's zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._pytree import tree_map_only

from burnish.options.model import Precision
from burnish.plan.counter import META, LiveBytes, tensors_in
from burnish.training.ranks import SINGLE_RANK, ProcessRanks, Ranks, process_group

aten, CPU = torch.ops.aten, torch.device("cpu")
LARGE = 1 << 14  # floating-point numbers from which on a new tensor is fake
TABLE = 1 << 24  # of what is computed from numbers with values
HUGE = 1 << 27  # elements of any type
UNSET = {aten.empty, aten.empty_strided}
MADE = UNSET | {
    aten.zeros, aten.ones, aten.full, aten.rand, aten.randn, aten.new_empty, aten.new_empty_strided, aten.new_zeros,
    aten.new_ones, aten.new_full, aten.empty_like, aten.zeros_like, aten.ones_like, aten.full_like, aten.rand_like,
    aten.randn_like,
}  # fmt: skip
IN_FLOAT32 = (  # under autocast on CUDA, other than on a CPU
    aten.layer_norm, aten.group_norm, aten.rms_norm, aten.softmax, aten.log_softmax, aten.exp, aten.log, aten.pow,
    aten.rsqrt, aten.reciprocal, aten.cumsum, aten.softplus, aten.logsumexp, aten.norm, aten.linalg_vector_norm,
    aten.cosine_similarity,
)  # fmt: skip


def is_fake(value: Any) -> bool:
    """Whether a tensor, or this rank's shard of one, has no values."""
    return isinstance(getattr(value, "_local_tensor", value), FakeTensor)


class Pretending:
    """Makes networks without memory. What is asked of values that nobody knows gets an answer.

    Choices by value take as many rows as there could be, so that a forecast is too high rather than too low.
    """

    def __init__(self) -> None:
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._like = vars(FakeTensor(self.fake, torch.empty(0, device=META), CPU))  # what each of them has
        self._known: dict[Any, Any] = {}  # what operations made, by what they made it of
        self.integer = 1  # the answer where one is asked for
        self._answers: dict[Any, Callable[..., Any]] = {
            aten._local_scalar_dense.default: self._scalar,
            aten.equal.default: lambda *_: True,
            aten.normal_.default: lambda x, *_, **__: x,
            aten.nonzero.default: self._nonzero,
            aten._unique2.default: self._unique,
            aten.bincount.default: self._bincount,
            aten.histc.default: lambda x, bins, *_: self._bincount(x, minlength=bins).to(x.dtype),
            aten._grouped_mm.default: self._grouped_mm,
            aten._ctc_loss.Tensor: self._ctc_loss,
            aten.index.Tensor: self._index,
            aten.split_with_sizes.default: self._split,
            aten.masked_select.default: lambda x, mask: self._index(x, [mask]),
        }

    @contextmanager
    def active(self, counter: LiveBytes) -> Iterator[None]:
        """Pretend in this context, and count what happens."""
        hook = register_module_parameter_registration_hook(self._registered)  # type: ignore[arg-type]
        with ExitStack() as contexts:
            contexts.callback(hook.remove)
            contexts.enter_context(patch.object(torch.utils, "swap_tensors", _exchanged))
            contexts.enter_context(patch.multiple(FakeTensor, create=True, **OWN_METHODS))
            # which draws until values fit
            contexts.enter_context(patch.object(nn.init, "_no_grad_trunc_normal_", _as_it_is))
            contexts.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            contexts.enter_context(patch.object(counter, "compute", self.computed))
            contexts.enter_context(counter)
            yield

    def _registered(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or is_fake(parameter):
            return parameter
        return nn.Parameter(self._as_fake(parameter.detach().to(META)), parameter.requires_grad)

    def computed(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What an operation gives."""
        if func is aten._fused_adamw_.default:  # on the shards: DTensor's rules take the square of a list's length
            args = tree_map_only(DTensor, lambda sharded: sharded._local_tensor, args)
            types = {type(one) for one in tensors_in(args)}
        if FakeTensor in types:
            if (answer := self._answers.get(func)) is not None:
                return answer(*args, **kwargs)
            if _writes(func):
                written = kwargs.get("out", args[0])
                if all(isinstance(one, FakeTensor) and one.numel() for one in tensors_in((written,))):
                    return written if func._schema.returns else None
            if any(kind is not FakeTensor for kind in types):
                return func(*args, **kwargs)
            return self._direct(func, types, args, kwargs)
        if func.overloadpacket in MADE and not types and kwargs.get("device") in (None, CPU):
            named = {"generator": None} if "generator" in kwargs else {}
            made = self._like_known(func, args, {**kwargs, **named, "device": META})
            if _is_large(made, unset=func.overloadpacket in UNSET):
                return self._anew(made)
        if not types and _is_pure(func) and any(one.numel() > LARGE for one in tensors_in(args)):
            # tables of positions take seconds, and gigabytes
            with suppress(NotImplementedError):
                made = self._without_memory(func, args, kwargs)
                if any(one.is_floating_point() and one.numel() > TABLE for one in tensors_in((made,))):
                    return tree_map_only(Tensor, self._as_fake, made)
        return func(*args, **kwargs)

    def _direct(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What an operation gives, by PyTorch's own kernel for shapes."""
        with suppress(NotImplementedError):
            if _is_pure(func):
                return _each(self._anew, self._like_known(func, args, kwargs))
            with in_kernel_invocation_manager(self.fake):
                return _each(self._as_fake, self._without_memory(func, args, kwargs))
        return self.fake.dispatch(func, types, args, kwargs)

    def _like_known(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation makes of like tensors, without memory: it is asked once."""
        key = (func, torch.get_default_dtype(), *map(_likeness, (*args, *kwargs, *kwargs.values())))
        if key not in self._known:
            with in_kernel_invocation_manager(self.fake):
                self._known[key] = self._without_memory(func, args, kwargs)
        return self._known[key]

    def _anew(self, value: Any) -> Any:
        """A fake tensor like one without memory; anything else as it is."""
        if isinstance(value, Tensor):
            value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
        return self._as_fake(value)

    @staticmethod
    def _without_memory(func: Any, args: Any, kwargs: Any) -> Any:
        named = {name: META if name == "device" else _without_values(one) for name, one in kwargs.items()}
        return func(*map(_without_values, args), **named)

    def _as_fake(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
            return value
        made = Tensor._make_subclass(
            FakeTensor, value, value.requires_grad, dispatch_device=True, device_for_backend_keys=CPU
        )  # as its own constructor does, which checks much
        vars(made).update(self._like)
        return made

    def _scalar(self, value: Tensor) -> bool | int | float:
        if value.dtype == torch.bool:
            return True
        return 0.0 if value.dtype.is_floating_point else self.integer

    def _made(self, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return self._as_fake(torch.empty(shape, dtype=dtype, device=META))  # type: ignore[no-any-return]

    def _nonzero(self, value: Tensor) -> Tensor:
        return self._made(value.numel(), value.ndim)

    def _unique(self, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor, Tensor]:
        return self._made(value.numel(), dtype=value.dtype), self._made(*value.shape), self._made(value.numel())

    def _bincount(self, value: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
        """Everything is in one bin, with values: a mixture of experts cuts its rows by them."""
        found = torch.zeros(max(minlength, 1), dtype=torch.long if weights is None else weights.dtype)
        found[0] = value.numel()
        return found

    def _grouped_mm(
        self, a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:  # fmt: skip
        """Products of rows with the matrix of their expert, whose shapes PyTorch knows for aligned bfloat16 alone."""
        groups = len(offs) if offs is not None else 0
        shape = {
            (2, 2): (groups, a.shape[0], b.shape[-1]), (2, 3): (a.shape[0], b.shape[-1]),
            (3, 2): (a.shape[1], b.shape[-1]), (3, 3): (*a.shape[:2], b.shape[-1]),
        }[a.ndim, b.ndim]  # fmt: skip
        return self._made(*shape, dtype=out_dtype or a.dtype)

    def _ctc_loss(
        self, log_probs: Tensor, targets: Tensor, steps: Tensor, lengths: Tensor, *_: Any
    ) -> tuple[Tensor, Tensor]:
        """The losses, and what their backward pass needs: as wide as the longest target is long."""
        states = 2 * int(lengths.max()) + 1
        loss = log_probs.new_empty(log_probs.shape[1])
        return loss, log_probs.new_empty(log_probs.shape[1], log_probs.shape[0], states)

    def _split(self, value: Tensor, sizes: list[int], dim: int = 0) -> Any:
        """Parts, also of what a mask without values has left all of."""
        first = value.narrow(dim, 0, sum(sizes)) if sum(sizes) < value.shape[dim] else value
        return self._direct(aten.split_with_sizes.default, (FakeTensor,), (first, sizes, dim), {})

    def _index(self, value: Tensor, indices: list[Tensor | None]) -> Tensor:
        places: list[Tensor | None] = []
        for one in indices:
            if one is None or one.dtype != torch.bool:
                places.append(one)
            elif is_fake(one):
                places += [self._made(one.numel()) for _ in range(one.ndim)]
            else:
                places += list(one.nonzero().unbind(1))
        return self._direct(aten.index.Tensor, (FakeTensor,), (value, places), {})  # type: ignore[no-any-return]


@cache
def _writes(func: Any) -> bool:
    """Whether an operation does nothing but write into tensors, which stay as large as they are."""
    given, made = ([one.alias_info for one in ones] for ones in (func._schema.arguments, func._schema.returns))
    writes = any(one is not None and one.is_write for one in given)
    written = all(one is not None and one.is_write for one in made)
    return func.namespace == "aten" and writes and written and torch.Tag.inplace_view not in func.tags


@cache
def _is_pure(func: Any) -> bool:
    """Whether an operation makes tensors of its own and changes none."""
    aliases = any(one.alias_info is not None for one in (*func._schema.returns, *func._schema.arguments))
    return func.namespace == "aten" and not aliases and func is not aten._unsafe_view.default


def _is_large(value: Tensor, *, unset: bool) -> bool:
    """Whether a new tensor is too large for values, or has none anyway: sharding makes weights of it, or, where weights
    of several precisions are gathered together, a buffer of bytes."""
    floating, size = value.dtype.is_floating_point, value.numel()
    if unset and (floating or (value.dtype == torch.uint8 and size)):
        return True
    return size > (LARGE if floating else HUGE)


def _likeness(value: Any) -> Any:
    """What an operation's result is made like: of tensors their shapes alone."""
    if isinstance(value, list | tuple):
        return tuple(map(_likeness, value))
    return (value.shape, value.stride(), value.dtype) if isinstance(value, Tensor) else (type(value), value)


def _each(function: Callable[[Any], Any], made: Any) -> Any:
    """A function of what an operation makes, or of each of several."""
    return list(map(function, made)) if isinstance(made, list | tuple) else function(made)


def _without_values(value: Any) -> Any:
    """An argument of an operation on tensors without values."""
    if isinstance(value, list | tuple):
        return [_without_values(one) for one in value]
    plain = isinstance(value, Tensor) and not isinstance(value, FakeTensor)
    return torch.empty_like(value, device=META) if plain else value


def _zeros(self: Tensor, *_: Any, **__: Any) -> Any:
    """The array of a fake tensor."""
    return np.zeros(self.shape, dtype=torch.zeros((), dtype=self.dtype).numpy().dtype)


def _as_it_is(self: Tensor, *_: Any, **__: Any) -> Tensor:
    """Instead of initial values."""
    return self


OWN_METHODS: dict[str, Any] = {
    "numpy": _zeros, "normal_": _as_it_is, "uniform_": _as_it_is, "fill_": _as_it_is, "zero_": _as_it_is,
    "erfinv_": _as_it_is,
}  # fmt: skip


@contextmanager
def cuda_precision() -> Iterator[None]:
    """In this context autocast has CUDA's choices of precision, for tensors on a CPU."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for kind in IN_FLOAT32:
            for overload in (getattr(kind, name) for name in kind.overloads() if "out" not in name):
                library.impl(overload, partial(_in_float32, overload), "AutocastCPU")
        yield


def _in_float32(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    low = (torch.bfloat16, torch.float16)
    args, kwargs = tree_map_only(Tensor, lambda one: one.float() if one.dtype in low else one, (given, named))
    with torch.autocast("cpu", enabled=False):
        return function(*args, **kwargs)


def _exchanged(one: Tensor, other: Tensor) -> None:
    """In the place of ``torch.utils.swap_tensors``, which takes none that anybody refers to."""
    one.data = other


class PretendRanks(ProcessRanks):
    """Ranks that all do what this one does, in a process group whose collectives do nothing."""

    sum, max, each, first, clone_group = Ranks.sum, Ranks.max, Ranks.each, Ranks.first, Ranks.clone_group

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.size

    to_first = gather


@contextmanager
def pretend_ranks(size: int) -> Iterator[Ranks]:
    """The first of ``size`` ranks, with a process group whose collectives do nothing."""
    if size == 1:
        yield SINGLE_RANK
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with process_group("fake", FakeStore(), size):
        yield PretendRanks(timeout=1.0)


BLOCK, NESTED = 64, 256  # weights of a scale, and scales of a scale, of NormalFloat


class _FourBits(torch.autograd.Function):
    """As bitsandbytes multiplies: with weights of full size that no backward pass waits for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: StoredLinear) -> Tensor:
        ctx.layer, ctx.given = layer, x.dtype
        return F.linear(x.to(layer.compute), layer.full(), layer.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (gradients[0].to(ctx.layer.compute) @ ctx.layer.full()).to(ctx.given), None


class StoredLinear(nn.Linear):
    """A frozen layer whose weight has the bytes of a quantised one."""

    def __init__(self, layer: nn.Linear, compute: torch.dtype, precision: Precision) -> None:
        """Args: ``precision`` of the weight: nf4, int8 or fp8."""
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.compute, self.precision, self.bias = compute, precision, layer.bias
        scales, columns = layer.out_features * (5 if precision == "int8" else 4), layer.in_features
        if precision == "nf4":
            count = layer.weight.numel() // BLOCK
            scales, columns = count + 4 * (count // NESTED), columns // 2
        self.weight, self.scales = (
            nn.Parameter(torch.empty(size, dtype=torch.uint8), requires_grad=False)
            for size in ((layer.out_features, columns), (scales,))
        )
        self.train(layer.training)

    def full(self) -> Tensor:
        """The weight as it is computed with, and the scales that it is made by."""
        shape = self.out_features, self.in_features
        if self.precision == "fp8":  # which is multiplied with its scales in float32
            wide = torch.empty(shape)
            scaled = wide * 1
            return scaled.to(self.compute)
        scales = torch.empty(self.out_features * self.in_features // BLOCK if self.precision == "nf4" else 1)
        made = torch.empty(shape, dtype=self.compute)
        del scales
        return made

    def forward(self, x: Tensor) -> Tensor:
        if self.precision == "nf4":
            return _FourBits.apply(x, self)  # type: ignore[no-untyped-call, no-any-return]
        # as torchao multiplies: what the weight is cast to waits for the backward pass
        product = F.linear(x.to(self.compute), self.full())
        if self.precision == "int8":
            product = product * torch.empty(self.out_features, dtype=self.compute)
        return product if self.bias is None else product + self.bias


def _store(
    network: nn.Module, layers: dict[str, nn.Linear], compute: torch.dtype, device: Any, *, precision: Precision
) -> None:
    for name, layer in layers.items():
        owner, _, own = name.rpartition(".")
        setattr(network.get_submodule(owner), own, StoredLinear(layer, compute, precision))


@contextmanager
def stored_in_fewer_bits() -> Iterator[None]:
    """In this context networks are quantised without libraries, and without values."""
    from burnish.models import quantization

    stored: tuple[Precision, ...] = ("nf4", "int8", "fp8")
    ours: dict[str, Any] = {name: partial(_store, precision=name) for name in stored}
    usable = patch.object(quantization, "lacking", lambda precision: "")
    with usable, patch.object(quantization, "QUANTIZERS", quantization.QUANTIZERS | ours):
        yield
