"""What kernels that exist for CUDA only compute, written out: for the pretended GPU."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, ends_q: Tensor, ends_k: Tensor, most_q: int, most_k: int,
    is_causal: bool = False, scale: float | None = None, window: list[int] | None = None, enable_gqa: bool = False,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Flash attention of segments: masks are aligned at the end of keys and queries, scores are float32."""
    assert not any(value is not None for value in rest)
    assert query.dtype == key.dtype == value.dtype, "flash attention takes tensors of one precision"
    assert query.dtype in (torch.bfloat16, torch.float16)
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    lengths = [(ends[1:] - ends[:-1]).max().item() for ends in (ends_q, ends_k)]
    assert lengths == [most_q, most_k], "not the longest segment"
    assert ends_q.dtype == ends_k.dtype == torch.int32
    assert (int(ends_q[-1]), int(ends_k[-1])) == (len(query), len(key))
    assert enable_gqa == (query.shape[1] != key.shape[1])
    out = torch.empty_like(query)
    total = query.new_zeros(query.shape[1], len(query), dtype=torch.float32)
    for own, _, q, k, v, seen, factor in _segments(query, key, value, ends_q, ends_k, is_causal, scale, window):
        scores = (q @ k.transpose(1, 2) * factor).masked_fill(~seen, -torch.inf)
        total[:, own] = scores.logsumexp(-1)
        out[own] = (scores.softmax(-1) @ v).transpose(0, 1).to(query.dtype)
    return out, total, torch.zeros(2, dtype=torch.uint64)


def varlen_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, ends_q: Tensor, ends_k: Tensor,
    most_q: int, most_k: int, is_causal: bool, state: Tensor, scale: float | None = None,
    window: list[int] | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Its gradients."""
    to_query = torch.zeros_like(query, dtype=torch.float32)
    to_key, to_value = (torch.zeros_like(one, dtype=torch.float32) for one in (key, value))
    groups = query.shape[1] // key.shape[1]
    for own, all_, q, k, v, seen, factor in _segments(query, key, value, ends_q, ends_k, is_causal, scale, window):
        chances = (q @ k.transpose(1, 2) * factor).masked_fill(~seen, -torch.inf).softmax(-1)
        outward = grad[own].transpose(0, 1).float()
        slope = outward @ v.transpose(1, 2)
        slope = chances * (slope - (slope * chances).sum(-1, keepdim=True)) * factor
        to_query[own] += (slope @ k).transpose(0, 1)
        for target, found in ((to_key, slope.transpose(1, 2) @ q), (to_value, chances.transpose(1, 2) @ outward)):
            target[all_] += found.unflatten(0, (-1, groups)).sum(1).transpose(0, 1)
    return to_query.to(query.dtype), to_key.to(key.dtype), to_value.to(value.dtype)


def _segments(
    query: Tensor, key: Tensor, value: Tensor, ends_q: Tensor, ends_k: Tensor, is_causal: bool, scale: float | None,
    window: list[int] | None,
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """Each segment: where its queries and keys lie, these [H, T, D] in float32, which pairs are seen, and the scale."""
    left, right = window or (-1, -1)
    groups = query.shape[1] // key.shape[1]
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    for (q0, q1), (k0, k1) in zip(pairwise(ends_q.tolist()), pairwise(ends_k.tolist()), strict=True):
        ahead = torch.arange(k1 - k0)[None] - torch.arange(q1 - q0)[:, None] - (k1 - k0 - (q1 - q0))
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if is_causal or right >= 0:
            seen &= ahead <= max(right, 0)
        if left >= 0:
            seen &= ahead >= -left
        k, v = (one[k0:k1].transpose(0, 1).repeat_interleave(groups, 0).float() for one in (key, value))
        yield slice(q0, q1), slice(k0, k1), query[q0:q1].transpose(0, 1).float(), k, v, seen, factor


STAND_INS: dict[str, Callable[..., Any]] = {"_varlen_attn": varlen_attention, "_varlen_attn_backward": varlen_backward}
