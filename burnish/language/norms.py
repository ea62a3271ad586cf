"""RMS norms of transformers with a backward pass of few operations: the same numbers to the last bit.

Autograd keeps two tensors of the size of the states for each norm and makes nine in its backward pass; written out it
is one and four. Only float32 goes this way, and only classes that are shown to compute what is written here.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

WIDTH = 24  # of the states that a class is tried on


class _Normed(torch.autograd.Function):
    """weight * (x / root mean square of x), over the last axis.

    It is given x twice, so that the two parts of its gradient are added to others in the order in which autograd does.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, again: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = x.pow(2).mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        divided = mean = to_weight = None
        if ctx.needs_input_grad[2]:
            to_weight = (x * scale).mul_(slope).sum(tuple(range(x.ndim - 1)))
        if ctx.needs_input_grad[0]:
            slope = slope * weight
            row = (slope * x).sum(-1, keepdim=True)
            # d scale = -scale^3 / 2 d mean(x^2), and d mean(x^2) = 2 x / D dx; factors of 2 round nothing
            mean = x * row.mul_(-0.5).mul_(scale.pow(3)).div_(x.shape[-1]).mul_(2)
            divided = slope.mul_(scale)
        return divided, mean, to_weight, None


def shorten_backward(network: nn.Module) -> None:
    """Let the norms of a network that compute an RMS norm have the short backward pass."""
    for module in network.modules():
        kind: Any = type(module)
        if kind.__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon") and _is_exact(module):
            module.__class__ = _shortened(kind)


@cache
def _shortened(kind: Any) -> Any:
    """A class of norms that differs in how gradients are computed."""

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        given = (hidden_states, hidden_states, self.weight)
        if torch.is_grad_enabled() and all(one.dtype == torch.float32 for one in given):
            out: Tensor = _Normed.apply(*given, self.variance_epsilon)  # type: ignore[no-untyped-call]
            return out
        plain: Tensor = kind.forward(self, hidden_states)
        return plain

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__, "shortened": True})


def _is_exact(module: Any) -> bool:
    """Whether a norm computes the same as the short one to the last bit, gradients among it."""
    kind: Any = type(module)
    if getattr(kind, "shortened", False) or [name for name, _ in module.named_parameters()] != ["weight"]:
        return False
    if module.weight.ndim != 1 or module.training or module._forward_hooks or module._forward_pre_hooks:
        return False
    return _agrees(kind, module.variance_epsilon)


@cache
def _agrees(kind: Any, eps: float) -> bool:
    """The same, of a class, on drawn numbers, whatever mode of PyTorch the caller is in: a thread starts without."""
    with ThreadPoolExecutor(1) as clear:
        return clear.submit(_computes_the_same, kind, eps).result()


def _computes_the_same(kind: Any, eps: float) -> bool:
    draws = torch.Generator().manual_seed(0)
    x, weight, slope = (torch.randn(*shape, WIDTH, generator=draws) for shape in ((2, 3), (), (2, 3)))
    found = []
    for own in (kind, _shortened(kind)):
        states, norm = x.clone().requires_grad_(), own.__new__(own)
        nn.Module.__init__(norm)
        # no parameter, for a forecast that is going on makes those without values
        norm.weight, norm.variance_epsilon = weight.clone().requires_grad_(), eps
        try:
            out = norm(states)
            found.append([out.detach(), *torch.autograd.grad(out, [states, norm.weight], slope)])
        except (AttributeError, RuntimeError, TypeError):
            return False  # it has more than a weight
    return all(map(torch.equal, *found))
