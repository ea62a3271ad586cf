"""Seconds until another process has the trainer's weights, over the memory that Burnish shares with vLLM.

The other process copies them into weights of its own with what vLLM's workers run; vLLM itself is not needed. The first
version also pays for the memory's pages.

    python -m benchmarks.vllm_weights
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection
from statistics import median

import torch

from burnish.language.vllm.apart.burnish_vllm.extension import kept, tensors
from burnish.language.vllm.process import SharedWeights

MATRIX = (2500, 2000)


def receive(end: Connection, count: int, dtype: torch.dtype) -> None:
    """Load versions as they come."""
    own = {f"layers.{number}": torch.zeros(MATRIX, dtype=dtype) for number in range(count)}
    end.send("ready")
    while (message := end.recv()) is not None:
        for name, tensor in tensors(kept(message["path"], message["size"]), message["places"]):
            own[name].copy_(tensor)
        end.send([float(tensor[0, 0]) for tensor in own.values()])


def main() -> None:
    """Print a line for each precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=int, default=200, help="millions")
    parser.add_argument("--smoke", action="store_true", help="5 millions")
    given = parser.parse_args()
    count = (5 if given.smoke else given.weights) * 1_000_000 // (MATRIX[0] * MATRIX[1])
    for dtype in (torch.float32, torch.bfloat16):
        weights = {f"layers.{number}": torch.zeros(MATRIX) for number in range(count)}
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=receive, args=(theirs, count, dtype), daemon=True)
        process.start()
        assert ours.recv() == "ready"
        shared, seconds = SharedWeights(), []
        for version in range(6):
            for tensor in weights.values():
                tensor.fill_(version)
            begun = time.perf_counter()
            shared.write(weights, version, dtype=dtype, settings=None)
            ours.send(shared.message)
            assert ours.recv() == [version] * count
            seconds.append(time.perf_counter() - begun)
        ours.send(None)
        process.join()
        shared.close()
        size = sum(tensor.numel() for tensor in weights.values()) * dtype.itemsize / 1e9
        later = median(seconds[1:])
        print(f"{dtype}: {size:.2f} GB in {later:.3f} s, {size / later:.1f} GB/s; the first in {seconds[0]:.2f} s")


if __name__ == "__main__":
    main()
