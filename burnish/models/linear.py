"""Linear layers with a forward pass of their own: with LoRA adapters, stored in fp8, and multiplied in fp8.

The weights of adapters (Hu et al. 2021, arXiv:2106.09685) are float32, so that small steps are not lost. peft computes
with them in that precision, or casts the input, the output and both matrices in every call; here a layer and its
adapter are one function.

diffusers' layerwise casting casts a layer's weight in place before and after its forward pass, so that the cast weight
waits for the backward pass, or fp8 reaches its matrix product. Here the backward pass casts again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn

from burnish.types.batch import is_sharded

FP8 = torch.float8_e4m3fn
SMALLEST = 1e-12  # largest value of a row, so that rows of zeros have a scale


class _Adapted(torch.autograd.Function):
    """x W^T + bias + scale (x A^T) B^T at x [..., in], with the frozen W [out, in], A [rank, in] and B [out, rank].

    ``low_a`` and ``low_b`` are A and B in the precision of W.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, low_a: Tensor, low_b: Tensor,
        scale: float,
    ) -> Tensor:  # fmt: skip
        low = x.to(weight.dtype)
        out, inner = _sum(F.linear(low, weight, bias), low, low_a, low_b, scale)
        ctx.save_for_backward(x, weight, low_a, low_b, inner)
        ctx.scale, ctx.precision = scale, a.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b, inner = ctx.saved_tensors
        outer = gradients[0].reshape(-1, len(weight)).to(weight.dtype)
        given = None
        low = _product(outer, b, ctx.scale)
        if ctx.needs_input_grad[0]:
            given = outer @ weight
            given = torch.addmm(given, low, a, out=given).view(x.shape).to(x.dtype)
        flat = x.reshape(-1, x.shape[-1]).to(weight.dtype)
        to_a, to_b = (low.T @ flat).to(ctx.precision), (outer.T @ inner).to(ctx.precision)
        return given, None, None, to_a, to_b, None, None, None


def _sum(out: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """What the layer made of x [..., in] with what its adapter adds to it, and scale x A^T [M, rank] on the way."""
    inner = _product(x.reshape(-1, x.shape[-1]), a.T, scale)
    flat = out.view(-1, out.shape[-1])
    torch.addmm(flat, inner, b.T, out=flat)
    return out, inner


def _product(one: Tensor, other: Tensor, scale: float) -> Tensor:
    """scale one @ other, as one kernel."""
    unread = one.new_empty(1).expand(len(one), other.shape[1])
    return torch.addmm(unread, one, other, beta=0, alpha=scale)


class LoraLinear(Linear):
    """peft's layer, whose forward pass is that function."""

    cast: dict[str, tuple[Tensor, Tensor]]  # A and B in the weight's precision, of adapters that are not moved now

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        base: Any = self.base_layer
        name = None if self.disable_adapters else self.active_adapters[0]
        if name is None or self.merged or name not in self.lora_A:
            return base(x, *args, **kwargs)  # type: ignore[no-any-return]
        device = x.device.type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != base.weight.dtype:
            return super().forward(x, *args, **kwargs)
        scale, low = float(self.scaling[name]), self.cast.get(name)
        a: Any = self.lora_A[name].weight
        b: Any = self.lora_B[name].weight
        if low is None:
            low = a.detach().to(base.weight.dtype), b.detach().to(base.weight.dtype)
        if torch.is_grad_enabled():
            return _Adapted.apply(x, base.weight, base.bias, a, b, *low, scale)  # type: ignore[no-any-return, no-untyped-call]
        x = x.to(base.weight.dtype)
        return _sum(base(x), x, *low, scale)[0]


def joined(layers: Iterable[Any]) -> None:
    """Have plain layers that are adapted run as one function: those of peft's own kinds stay as they are."""
    for layer in layers:
        plain = type(layer) is Linear and type(layer.base_layer) is nn.Linear and not layer.fan_in_fan_out
        dropout = any(not isinstance(one, nn.Identity) for one in layer.lora_dropout.values())
        if plain and not dropout and not layer.lora_variant:
            layer.__class__, layer.cast = LoraLinear, {}


@contextmanager
def cast_once(layers: Iterable[Any], names: Iterable[str]) -> Iterator[None]:
    """A context in which adapters are not moved: one kernel casts the weights of each that are here in full."""
    ours, weights, low = [], list[Tensor](), list[Tensor]()
    for layer, name in product(layers, names):
        inner: Any = layer._modules  # a module's attributes take longer than what is saved
        if type(layer) is LoraLinear and name not in layer.cast and name in inner["lora_A"]._modules:
            pair = [inner[part]._modules[name]._parameters["weight"] for part in ("lora_A", "lora_B")]
            precision = inner["base_layer"].weight.dtype
            if pair[0].dtype != precision and not is_sharded(pair[0]):
                weights += pair
                low += [torch.empty_like(one, dtype=precision) for one in pair]
                ours.append((layer.cast, name))
                layer.cast[name] = low[-2], low[-1]
    try:
        if low:
            with torch.no_grad():
                torch._foreach_copy_(low, weights)
        yield
    finally:
        for cast, name in ours:
            del cast[name]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, compute: torch.dtype) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.given, ctx.compute = x.dtype, compute
        return F.linear(x.to(compute), weight.to(compute), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return (gradients[0].to(ctx.compute) @ weight.to(ctx.compute)).to(ctx.given), None, None, None


class CastLinear(nn.Linear):
    """A frozen linear layer whose weight is stored in fp8 (e4m3), without a scale."""

    def __init__(self, layer: nn.Linear) -> None:
        """Args: ``layer`` is frozen, and in the precision to compute in."""
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.compute = layer.weight.dtype
        self.weight = nn.Parameter(layer.weight.detach().to(FP8), requires_grad=False)
        self.bias = layer.bias
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Product.apply(x, self.weight, self.bias, self.compute)  # type: ignore[no-untyped-call]
        return out


class Fp8Linear(nn.Linear):
    """A linear layer whose product is one of fp8 (e4m3) while ``switch`` is on, with a scale for each row of the input
    and of the weight; the adapter that is added to it is not."""

    switch: Switch
    rounded: tuple[Tensor, Tensor]  # the weight

    def forward(self, x: Tensor) -> Tensor:
        if not self.switch.on:
            return super().forward(x)
        (rows, scales), (weight, weight_scales) = _in_fp8(x.reshape(-1, x.shape[-1])), self.rounded
        out = F.scaled_mm(
            rows, weight.T, scales, F.ScalingType.RowWise, weight_scales.T, F.ScalingType.RowWise,
            bias=None if self.bias is None else self.bias.bfloat16(), output_dtype=torch.bfloat16, use_fast_accum=True,
        )  # fmt: skip
        return out.view(*x.shape[:-1], -1).to(x.dtype)


def _in_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [M, N] in fp8, and the scale [M, 1] float32 of each."""
    scales = rows.abs().amax(1, keepdim=True).float().clamp_min(SMALLEST) / torch.finfo(FP8).max
    return (rows / scales).to(FP8), scales


class Switch:
    """Whether products are in fp8 now."""

    on = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A context in which they are."""
        self.on = True
        try:
            yield
        finally:
            self.on = False


@contextmanager
def in_fp8(layers: Iterable[nn.Linear]) -> Iterator[Switch]:
    """A context in which layers keep their weights, which nobody moves, in fp8 too, and multiply as its switch says."""
    switch, chosen = Switch(), list(layers)
    for layer in chosen:
        layer.__class__ = Fp8Linear
        layer.switch, layer.rounded = switch, _in_fp8(layer.weight.detach())  # type: ignore[assignment]
    try:
        yield switch
    finally:
        for layer in chosen:
            layer.__class__ = nn.Linear
            del layer.switch, layer.rounded
