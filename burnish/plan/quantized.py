"""Linear layers that take the memory of quantised ones, without the libraries that have those.

Sizes are those of the formats: bitsandbytes' NormalFloat keeps a byte for two weights, a byte of scale for 64 of them
and a float32 for 256 scales; torchao's int8 and fp8 keep a byte for each weight and a float32 for each row, int8 one
more byte for a row's zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.options.model import Precision

BLOCK, NESTED = 64, 256  # weights of a scale, and scales of a scale, of NormalFloat


class _FourBits(torch.autograd.Function):
    """As bitsandbytes multiplies: with weights of full size that no backward pass waits for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: StoredLinear) -> Tensor:
        ctx.layer, ctx.given = layer, x.dtype
        return F.linear(x.to(layer.compute), layer.full(), layer.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer: StoredLinear = ctx.layer
        return (gradients[0].to(layer.compute) @ layer.full()).to(ctx.given), None


class StoredLinear(nn.Linear):
    """A frozen layer whose weight has the bytes of a quantised one."""

    def __init__(self, layer: nn.Linear, compute: torch.dtype, precision: Precision) -> None:
        """Args: ``precision`` of the weight: nf4, int8 or fp8."""
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.compute, self.precision = compute, precision
        columns = layer.in_features // (2 if precision == "nf4" else 1)
        self.weight = nn.Parameter(torch.empty(layer.out_features, columns, dtype=torch.uint8), requires_grad=False)
        self.bias = layer.bias
        scales = layer.weight.numel() // BLOCK
        rows = layer.out_features * (5 if precision == "int8" else 4)
        own = scales + 4 * (scales // NESTED) if precision == "nf4" else rows
        self.scales = nn.Parameter(torch.empty(own, dtype=torch.uint8), requires_grad=False)
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
            found: Tensor = _FourBits.apply(x, self)  # type: ignore[no-untyped-call]
            return found
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

    replaced: Any = quantization
    before = replaced.QUANTIZERS, replaced.quantization_complaint
    stored: tuple[Precision, ...] = ("nf4", "int8", "fp8")
    ours = {name: partial(_store, precision=name) for name in stored}
    replaced.QUANTIZERS = before[0] | ours
    replaced.quantization_complaint = lambda precision: ""
    try:
        yield
    finally:
        replaced.QUANTIZERS, replaced.quantization_complaint = before
