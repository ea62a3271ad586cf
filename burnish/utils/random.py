"""Counter-based randomness: every draw is a function of its key; and kernels that add in one order."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

Part = int | str


def key(*parts: Part) -> int:
    """A 63-bit seed from (run seed, purpose, policy update, prompt, sample, step, ...)."""
    return int.from_bytes(hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest(), "big") >> 1


def generator(*parts: Part) -> torch.Generator:
    """A CPU generator that depends on ``parts`` alone."""
    return torch.Generator().manual_seed(key(*parts))


def normal(shape: Sequence[int], rows: Sequence[tuple[Part, ...]]) -> Tensor:
    """Standard normal noise [len(rows), *shape] in float32; row i depends on ``rows[i]`` alone.

    It is drawn on the CPU, so that it does not depend on the device.
    """
    out = torch.empty(len(rows), *shape)
    for target, parts in zip(out, rows, strict=True):
        torch.randn(tuple(shape), generator=generator(*parts), out=target)
    return out


def uniform(count: int, rows: Sequence[tuple[Part, ...]]) -> Tensor:
    """Uniform numbers in [0, 1): [len(rows), count]; row i depends on ``rows[i]`` alone."""
    return torch.stack([torch.rand(count, generator=generator(*parts)) for parts in rows])


def permutation(count: int, *parts: Part) -> list[int]:
    """A permutation of range(count) that depends on ``parts`` alone."""
    return torch.randperm(count, generator=generator(*parts)).tolist()


WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS reads it as it is first used; without it products may differ by stream


@contextmanager
def in_one_order() -> Iterator[None]:
    """Have PyTorch choose kernels that give the same bits each time, in this context; of the process, not the thread.

    An operation that has none computes all the same, and PyTorch warns of it by its name.
    """
    import torch

    cudnn, memory = torch.backends.cudnn, cast(Any, torch.utils.deterministic)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    of_cudnn, filled = (cudnn.deterministic, cudnn.benchmark), memory.fill_uninitialized_memory
    os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    cudnn.deterministic, cudnn.benchmark = True, False
    memory.fill_uninitialized_memory = False  # nothing is read that was not written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.deterministic, cudnn.benchmark = of_cudnn
        memory.fill_uninitialized_memory = filled
