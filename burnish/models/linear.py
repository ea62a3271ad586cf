"""Linear layers with a forward pass of their own: with LoRA adapters, and stored in fp8.

The weights of adapters (Hu et al. 2021, arXiv:2106.09685) are float32, so that small steps are not lost. peft computes
with them in that precision, or casts the input, the output and both matrices in every call; here a layer and its
adapter are one function.

diffusers' layerwise casting casts a layer's weight in place before and after its forward pass, so that the cast weight
waits for the backward pass, or fp8 reaches its matrix product. Here the backward pass casts again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn


class _Adapted(torch.autograd.Function):
    """x W^T + bias + scale (x A^T) B^T at x [..., in], with the frozen W [out, in], A [rank, in] and B [out, rank]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:  # fmt: skip
        low_a, low_b = a.to(weight.dtype), b.to(weight.dtype)
        out, inner = _sum(x.to(weight.dtype), weight, bias, low_a, low_b, scale)
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
        return given, None, None, (low.T @ flat).to(ctx.precision), (outer.T @ inner).to(ctx.precision), None


def _sum(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """What the layer and its adapter make of x [..., in], and scale x A^T [M, rank] on the way."""
    out = F.linear(x, weight, bias)
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

    cast: dict[str, tuple[Tensor, Tensor]] | None = None  # A and B in the weight's precision, while nothing is learned

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        base: Any = self.base_layer
        name = None if self.disable_adapters else self.active_adapters[0]
        if name is None or self.merged or name not in self.lora_A:
            return base(x, *args, **kwargs)  # type: ignore[no-any-return]
        device = x.device.type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != base.weight.dtype:
            return super().forward(x, *args, **kwargs)
        scale = float(self.scaling[name])
        if torch.is_grad_enabled():
            a, b = self.lora_A[name].weight, self.lora_B[name].weight
            return _Adapted.apply(x, base.weight, base.bias, a, b, scale)  # type: ignore[no-any-return, no-untyped-call]
        a, b = (self.cast or {}).get(name) or self.in_precision(name)
        return _sum(x.to(base.weight.dtype), base.weight, base.bias, a, b, scale)[0]

    def in_precision(self, name: str) -> tuple[Tensor, Tensor]:
        """A and B in the precision of the weight."""
        precision = self.base_layer.weight.dtype
        a: Any = self.lora_A[name].weight
        b: Any = self.lora_B[name].weight
        return a.to(precision), b.to(precision)


def joined(layers: Iterable[Any]) -> None:
    """Have plain layers that are adapted run as one function: those of peft's own kinds stay as they are."""
    for layer in layers:
        plain = type(layer) is Linear and type(layer.base_layer) is nn.Linear and not layer.fan_in_fan_out
        dropout = any(not isinstance(one, nn.Identity) for one in layer.lora_dropout.values())
        if plain and not dropout and not layer.lora_variant:
            layer.__class__ = LoraLinear


@contextmanager
def cast_once(layers: Iterable[Any], name: str) -> Iterator[None]:
    """A context in which an adapter is not learned: its weights are cast once."""
    ours = [layer for layer in layers if isinstance(layer, LoraLinear) and name in layer.lora_A]
    for layer in ours:
        layer.cast = {name: layer.in_precision(name)}
    try:
        yield
    finally:
        for layer in ours:
            layer.cast = None


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
        self.weight = nn.Parameter(layer.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
        self.bias = layer.bias
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Product.apply(x, self.weight, self.bias, self.compute)  # type: ignore[no-untyped-call]
        return out
