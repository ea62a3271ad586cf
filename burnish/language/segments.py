"""Attention of segments of any length in one kernel call, without masks or padding: torch's variable-length attention.

Flash attention aligns a causal mask at the end of keys and queries, so that a response whose keys begin with those of
its prompt sees all of the prompt and, of itself, what came before.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from burnish.types.batch import to_device

log = logging.getLogger(__name__)

WIDEST = 256  # width of a head, that the kernel has been written for
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Segment:
    """A contiguous part of the sequence with causal attention, and full attention to the segment ``prefix``."""

    start: int
    length: int
    prefix: int | None = None


@dataclass(frozen=True)
class Lengths:
    """Where segments begin among queries, which are the sequence, and among keys."""

    queries: Tensor  # [S + 1] int32
    keys: Tensor  # [S + 1] int32
    index: Tensor | None  # [K] long, of the keys in the sequence; None: the keys are the sequence
    most_queries: int
    most_keys: int

    @classmethod
    def of(cls, segments: Sequence[Segment], *, device: torch.device) -> Lengths:
        """Of segments that cover the sequence exactly."""
        chosen = sorted((segment for segment in segments if segment.length), key=lambda segment: segment.start)
        own = [segment.length for segment in chosen]
        assert [segment.start for segment in chosen] == [0, *accumulate(own)][:-1], "segments leave gaps or overlap"
        before = [segments[segment.prefix] if segment.prefix is not None else Segment(0, 0) for segment in chosen]
        counts = [prefix.length + length for prefix, length in zip(before, own, strict=True)]
        index = None
        if any(segment.prefix is not None for segment in chosen):
            ranges = [
                torch.arange(one.start, one.start + one.length)
                for pair in zip(before, chosen, strict=True)
                for one in pair
            ]
            index = to_device(torch.cat(ranges), device)
        ends = (torch.tensor([0, *accumulate(some)], dtype=torch.int32) for some in (own, counts))
        queries, keys = (to_device(tensor, device) for tensor in ends)
        return cls(queries, keys, index, max(own, default=0), max(counts, default=0))


def varying(
    query: Tensor, key: Tensor, value: Tensor, lengths: Lengths, *, causal: bool, window: int | None,
    scale: float | None,
) -> Tensor:  # fmt: skip
    """Attention of queries [N, H, D] over keys and values [N, K, D], segment by segment: [N, H, D].

    Args:
        query, key, value: tokens of the sequence.
        lengths: of the segments.
        causal: whether a token sees only itself, earlier tokens and its prefix.
        window: of these the last ones only, itself included; None: all.
        scale: of the scores.
    """
    from torch.nn.attention.varlen import varlen_attn

    if lengths.index is not None:
        key, value = key.index_select(0, lengths.index), value.index_select(0, lengths.index)
    left = -1 if window is None else window - 1  # the kernel doesn't count the token itself
    out = varlen_attn(
        query, key, value,
        lengths.queries, lengths.keys, lengths.most_queries, lengths.most_keys,
        scale=scale, window_size=(left, 0 if causal else -1), enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    assert isinstance(out, Tensor)  # nothing else was asked for
    return out


def as_computed(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In the precision that autocast gives attention: its list doesn't have this kernel."""
    kind = query.device.type
    if query.is_cuda and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        return query.to(dtype), key.to(dtype), value.to(dtype)
    return query, key, value


def unsupported(query: Tensor, dropout: float) -> str:
    """Why the kernel can't take queries [.., D]; "" if it can."""
    if not query.is_cuda:
        return "there is a kernel for CUDA only"
    if query.dtype not in HALF:
        return "there is a kernel for half precision only (model.dtype=bfloat16)"
    if query.shape[-1] > WIDEST or query.shape[-1] % 8:
        return f"heads are {query.shape[-1]} wide, not a multiple of 8 up to {WIDEST}"
    if dropout:
        return "attention has dropout"
    return missing(query.device)


@cache
def missing(device: torch.device) -> str:
    """What PyTorch or the GPU lack for the kernel; "" for nothing."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"PyTorch {torch.__version__} has no torch.nn.attention.varlen"
    if not {"scale", "window_size", "enable_gqa"} <= inspect.signature(varlen_attn).parameters.keys():
        return f"torch.nn.attention.varlen of PyTorch {torch.__version__} has no scale, windows or groups of heads"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return f"{torch.cuda.get_device_name(device)} is older than its kernels (compute capability 8.0)"
    if not torch.backends.cuda.is_flash_attention_available():
        return "PyTorch was built without flash attention"
    return ""


@cache
def say_once(device: torch.device, reason: str) -> None:
    """Say on a GPU how packed sequences are attended, and why."""
    if device.type == "cuda" and reason:
        log.warning("packed sequences are attended in padded groups, which is slower and takes masks: %s", reason)
    elif device.type == "cuda":
        log.info("packed sequences are attended segment by segment (torch.nn.attention.varlen)")
