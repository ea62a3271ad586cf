"""Prints what this machine's kernels and links reach, by ``burnish doctor``'s steps, beside the plan's constants."""

import json
from typing import Any

import torch

from burnish.commands.doctor import copy_speed, launch_time, sum_speed, timed
from burnish.config.hardware import Speed


def products(device: str, dtype: torch.dtype, sides: tuple[int, ...]) -> float:
    """TFLOP/s of the fastest matrix product."""
    rates = []
    for side in sides:
        a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        rates.append(2 * side**3 / timed(lambda a=a, b=b: a @ b, device, 10))
    return max(rates) / 1e12


def moved(device: str, size: int) -> float:
    """GB/s that a kernel reads and writes."""
    numbers = torch.zeros(size, device=device, dtype=torch.uint8)
    return 2 * size / 1e9 / timed(lambda: numbers.add_(1), device, 10)


def rows() -> list[dict[str, Any]]:
    """A row for each figure."""
    cards, speed = torch.cuda.device_count(), Speed()
    device = "cuda" if cards else "cpu"
    dtype, sides, size = (torch.bfloat16, (2048, 4096, 8192), 1 << 30) if cards else (torch.float32, (256,), 1 << 24)
    found = [
        ("matrix products, TFLOP/s", products(device, dtype, sides), speed.tflops),
        ("a GPU's memory, GB/s", moved(device, size), speed.bandwidth),
        ("a launch, µs", launch_time(device), speed.launch),
        ("from pinned memory, GB/s", copy_speed(device), None),
    ]
    if cards != 1:
        found.append(("summed by all cards, GB/s", sum_speed(device, cards or 2), speed.nvlink))
        peers = [torch.cuda.can_device_access_peer(0, other) for other in range(1, cards)]
        found.append(("cards that reach the first one's memory", float(sum(peers)), None))
    return [{"name": name, "measured": value, "planned": plan} for name, value, plan in found]


if __name__ == "__main__":
    print(json.dumps(rows()))
