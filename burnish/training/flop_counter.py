"""Floating-point operations: those of a network's products, counted as it runs, and the most that devices do."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

log = logging.getLogger(__name__)

aten = torch.ops.aten


class Cost(NamedTuple):
    """Operations of a forward pass, and of the backward pass after it. What is computed again there isn't counted."""

    forward: float = 0.0
    backward: float = 0.0


class FlopCounter(TorchDispatchMode):
    """A mode that counts products, convolutions and attention by PyTorch's own formulas.

    A product has one of its size in the backward pass for each operand that needs a gradient: of a frozen weight only
    that to its input. Attention has two products and four. As PyTorch does, all pairs of tokens are
    counted, also those that a mask hides. An operation in fp8 is half a one, as GPUs do two in its time.
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
        self.formulas |= {aten._scaled_mm_v2: _in_fp8}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind, kwargs = func.overloadpacket, kwargs or {}
        out = func(*args, **kwargs)
        if kind in self.formulas:
            flops = float(self.formulas[kind](*args, **kwargs, out_val=out))
            back = flops * self._gradients(kind, args)
            self.cost = Cost(self.cost.forward + flops, self.cost.backward + back)
        return out

    def _gradients(self, kind: Any, args: Any) -> float:
        """Products of the backward pass for each of the forward pass."""
        if not torch.is_grad_enabled():
            return 0.0
        if kind in self._attention:
            return 2.0 * any(one.requires_grad for one in args[:3])  # kernels give all three gradients
        operands = args[1:3] if kind in (aten.addmm, aten.baddbmm) else args[:2]
        return float(sum(one.requires_grad for one in operands))


def _grouped(given: Tensor, weights: Tensor, *_: Any, **__: Any) -> int:
    """Rows of experts one after the other, [N, D] times [E, D, F]: each row meets the weights of one."""
    return 2 * given.shape[0] * given.shape[1] * weights.shape[-1]


def _in_fp8(rows: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    """[N, D] times [D, E]."""
    return rows.shape[0] * weight.numel()


class Peak(NamedTuple):
    """10^12 operations per second without sparsity, sums in float32; None where a card has no such units."""

    half: float  # bfloat16 tensor cores; those of float16 where a card has no bfloat16
    tf32: float | None
    single: float  # float32 outside of tensor cores


# by how torch.cuda.get_device_name begins; of several the longest counts. From the makers' data sheets, which print
# tensor cores with sparsity: half of that. docs/metrics.md names them.
PEAKS = {
    "NVIDIA B200": Peak(2250, 1125, 75),
    "NVIDIA GB200": Peak(2500, 1250, 80),
    "NVIDIA H200": Peak(989.4, 494.7, 66.9),
    "NVIDIA H200 NVL": Peak(835.5, 417.5, 60),
    "NVIDIA GH200": Peak(989.4, 494.7, 66.9),
    "NVIDIA H100": Peak(989.4, 494.7, 66.9),  # "NVIDIA H100 80GB HBM3": SXM5
    "NVIDIA H100 PCIe": Peak(756.5, 378, 51),
    "NVIDIA H100 NVL": Peak(835.5, 417.5, 60),
    "NVIDIA H800": Peak(989.4, 494.7, 66.9),
    "NVIDIA H800 PCIe": Peak(756.5, 378, 51),
    "NVIDIA H20": Peak(148, 74, 44),
    "NVIDIA A100": Peak(312, 156, 19.5),
    "NVIDIA A800": Peak(312, 156, 19.5),
    "NVIDIA A40": Peak(149.7, 74.8, 37.4),
    "NVIDIA A30": Peak(165, 82, 10.3),
    "NVIDIA A10": Peak(125, 62.5, 31.2),
    "NVIDIA RTX A6000": Peak(154.8, 77.4, 38.7),
    "NVIDIA L40S": Peak(362, 183, 91.6),
    "NVIDIA L40": Peak(181, 90.5, 90.5),
    "NVIDIA L4": Peak(121, 60, 30.3),
    "NVIDIA RTX 6000 Ada": Peak(364.2, 182.1, 91.1),
    "NVIDIA GeForce RTX 3090": Peak(71, 35.6, 35.6),
    "NVIDIA GeForce RTX 4090": Peak(165.2, 82.6, 82.6),
    "NVIDIA GeForce RTX 5090": Peak(209.5, 104.8, 104.8),
    "Tesla V100-SXM2": Peak(125, None, 15.7),
    "Tesla V100-PCIE": Peak(112, None, 14),
    "Tesla T4": Peak(65, None, 8.1),
    "AMD Instinct MI300X": Peak(1307.4, 653.7, 163.4),
}


def peak_of(name: str, compute: torch.dtype, *, tf32: bool) -> float | None:
    """Operations per second of a device by its name; None if it is unknown.

    Args:
        name: as ``torch.cuda.get_device_name`` gives it.
        compute: precision of forward passes.
        tf32: whether products of float32 may be rounded to it.
    """
    known = [start for start in PEAKS if name == start or name.startswith((f"{start} ", f"{start}-"))]
    if not known:
        return None
    peak = PEAKS[max(known, key=len)]
    if compute != torch.float32:
        return peak.half * 1e12
    return (peak.tf32 if tf32 and peak.tf32 is not None else peak.single) * 1e12


def device_peak(device: torch.device, compute: torch.dtype) -> float | None:
    """Operations per second of a device; None, with a line in the log, if nobody knows.

    Args:
        device: of the networks.
        compute: precision of forward passes.
    """
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    name = torch.cuda.get_device_name(device) if on_gpu else "a CPU"
    peak = peak_of(name, compute, tf32=torch.get_float32_matmul_precision() != "highest") if on_gpu else None
    if peak is None:
        level = logging.WARNING if on_gpu else logging.INFO
        log.log(level, "perf/mfu isn't logged: the peak of %s is not known", name)
    return peak
