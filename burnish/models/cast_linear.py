"""Linear layers that rest in fp8 and compute in another precision, as diffusers' layerwise casting has them.

diffusers casts a layer's weight in place before and after its forward pass, so that the cast weight waits for the
backward pass, or fp8 reaches its matrix product. Here the backward pass casts again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
