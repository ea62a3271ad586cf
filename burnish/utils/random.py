"""Counter-based randomness: every draw is a function of its key, never of order, batch or worker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

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
