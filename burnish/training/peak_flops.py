"""The most floating-point operations per second of devices, which model FLOPs utilisation (MFU) is a share of."""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch

log = logging.getLogger(__name__)


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


def device_peak(device: torch.device, compute: torch.dtype, stated: float | None) -> float | None:
    """Operations per second of a device; None, with a line in the log, if nobody knows.

    Args:
        device: of the networks.
        compute: precision of forward passes.
        stated: trainer.peak_tflops.
    """
    if stated is not None:
        return stated * 1e12
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    name = torch.cuda.get_device_name(device) if on_gpu else "a CPU"
    peak = peak_of(name, compute, tf32=torch.get_float32_matmul_precision() != "highest") if on_gpu else None
    if peak is None:
        level = logging.WARNING if on_gpu else logging.INFO
        log.log(level, "perf/mfu isn't logged: nobody told the peak of %s; trainer.peak_tflops does", name)
    return peak
