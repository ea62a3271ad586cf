"""Counts floating-point operations of a network's products, as it runs; also on tensors without values."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Cost(NamedTuple):
    """Operations of a forward pass, and of the backward pass after it. What is computed again there isn't counted."""

    forward: float = 0.0
    backward: float = 0.0

    def plus(self, other: Cost, times: float = 1.0) -> Cost:
        """The sum with N of another."""
        return Cost(self.forward + times * other.forward, self.backward + times * other.backward)


class FlopCounter(TorchDispatchMode):
    """A mode that counts products, convolutions and attention by PyTorch's own formulas.

    A product has one of its size in the backward pass for each operand that needs a gradient: of a frozen weight only
    that to its input. Attention has two products and four. As PyTorch does, all pairs of tokens are
    counted, also those that a mask hides.
    """

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry

        super().__init__()  # type: ignore[no-untyped-call]
        self.cost = Cost()
        self.formulas: dict[Any, Any] = dict(flop_registry)
        self._attention = {
            aten._scaled_dot_product_efficient_attention, aten._scaled_dot_product_flash_attention,
            aten._scaled_dot_product_cudnn_attention, aten._scaled_dot_product_flash_attention_for_cpu,
        }  # fmt: skip
        on_gpu = self.formulas[aten._scaled_dot_product_flash_attention]
        back = self.formulas[aten._scaled_dot_product_flash_attention_backward]
        self.formulas |= {aten._scaled_dot_product_flash_attention_for_cpu_backward: back}
        self.formulas |= {aten._scaled_dot_product_flash_attention_for_cpu: on_gpu, aten._grouped_mm: _grouped}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.index.Tensor and isinstance(args[0], FakeTensor):
            args = (args[0], _places(args[1]))
        kind = func.overloadpacket
        fake = kind is aten._grouped_mm and isinstance(args[0], FakeTensor)
        out = _experts(*args) if fake else func(*args, **kwargs)
        if kind in self.formulas:
            flops = float(self.formulas[kind](*args, **kwargs, out_val=out))
            self.cost = self.cost.plus(Cost(flops, flops * self._gradients(kind, args)))
        return out

    def _gradients(self, kind: Any, args: Any) -> float:
        """Products of the backward pass for each of the forward pass."""
        if not torch.is_grad_enabled():
            return 0.0
        if kind in self._attention:
            return 2.0 * any(one.requires_grad for one in args[:3])  # kernels give all three gradients
        operands = args[1:3] if kind in (aten.addmm, aten.baddbmm) else args[:2]
        return float(sum(one.requires_grad for one in operands))


def _experts(given: Tensor, weights: Tensor, *_: Any) -> Tensor:
    """The shape of ``_grouped_mm``, which knows no float32 without values."""
    return given.new_empty(len(given), weights.shape[-1])


def _grouped(given: Tensor, weights: Tensor, *_: Any, **__: Any) -> int:
    """Rows of experts one after the other, [N, D] times [E, D, F]: each row meets the weights of one."""
    return 2 * given.shape[0] * given.shape[1] * weights.shape[-1]


def _places(indices: Any) -> list[Tensor | None]:
    """Positions in place of masks, which tensors without values can't be chosen by."""
    found: list[Tensor | None] = []
    for one in indices:
        masks = one is not None and one.dtype == torch.bool and not isinstance(one, FakeTensor)
        found += list(one.nonzero().unbind(1)) if masks else [one]
    return found
