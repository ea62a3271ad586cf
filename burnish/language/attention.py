"""Attention over a packed sequence: each segment attends to itself, and to its prefix if it has one.

On GPUs in half precision one kernel call takes segments of any length (``segments.py``); elsewhere, segments of similar
length are padded to batches. Everything else runs on the tokens without padding. It is registered with transformers'
attention interface; the name contains "flash" because transformers' vision towers then pass all images in one call.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from burnish.types.batch import to_device

PAIRS = 2**26  # of tokens in the mask of one call, if it has several segments
MIN_FILL = 0.8  # segments share a call if the shortest has at least this fraction of the longest one's length


@dataclass(frozen=True)
class Bucket:
    """Segments of similar length, attended in one call."""

    queries: Tensor  # [S, T] long, indices in the sequence; padded with the first index
    keys: Tensor  # [S, P + T] long
    mask: Tensor | None  # [S or 1, 1, T or 1, P + T] bool; None is causal
    contiguous: slice | None  # the queries, where they are a slice of the sequence
    prefix: Tensor  # [S] long: length of each segment's prefix
    _additive: dict[torch.dtype, Tensor] = field(default_factory=dict, init=False, repr=False)

    def to(self, device: torch.device | str) -> Bucket:
        mask = None if self.mask is None else to_device(self.mask, device)
        queries, keys, prefix = (to_device(value, device) for value in (self.queries, self.keys, self.prefix))
        return Bucket(queries, keys, mask, self.contiguous, prefix)

    def within(self, window: int) -> Bucket:
        """The same with a sliding window of ``window`` tokens, the current one included."""
        own, longest = self.queries.shape[1], self.keys.shape[1]
        if longest <= window:
            return self
        device = self.keys.device
        index = self.prefix[:, None] + torch.arange(own, device=device)  # [S, T], within prefix and segment
        shared = torch.arange(longest - own, device=device).expand(len(index), -1)
        distance = index[:, :, None] - torch.cat([shared, index], 1)[:, None]
        mask = (distance >= 0 if self.mask is None else self.mask[:, 0]) & (distance < window)
        return replace(self, mask=mask[:, None])

    def additive(self, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores, made once for all layers: attention makes it of a mask of bools in each."""
        if self.mask is None:
            return None
        if dtype not in self._additive:
            shown = torch.zeros(self.mask.shape, dtype=dtype, device=self.mask.device)
            self._additive[dtype] = shown.masked_fill_(~self.mask, -torch.inf)
        return self._additive[dtype]


class Plan:
    """How the segments of a packed sequence are attended; what a kernel needs is made when it is first asked for."""

    def __init__(self, segments: Sequence[Segment], *, causal: bool, device: torch.device | str) -> None:
        self.segments, self.causal, self.device = segments, causal, torch.device(device)
        self._groups: dict[int | None, Groups] = {}

    @classmethod
    def of(cls, segments: Sequence[Segment], *, causal: bool = True, device: torch.device | str = "cpu") -> Plan:
        """Plan for segments that cover the sequence exactly."""
        return cls(segments, causal=causal, device=device)

    def groups(self, window: int | None = None) -> Groups:
        """Padded groups of segments, with a sliding window where layers have one."""
        if None not in self._groups:
            self._groups[None] = Groups.of(self.segments, causal=self.causal, device=self.device)
        if window not in self._groups and window is not None:
            self._groups[window] = self._groups[None].within(window)
        return self._groups[window]

    @cached_property
    def lengths(self) -> Lengths:
        """What kernels for segments of any length need."""
        return Lengths.of(self.segments, device=self.device)


@dataclass(frozen=True)
class Groups:
    """Segments as padded batches, for kernels that know one length only."""

    buckets: list[Bucket] = field(repr=False)
    places: list[int]  # the buckets in the order in which their outputs are joined: that of their first tokens
    order: Tensor | None  # [N] long: index of each token's output among the joined ones; None: they are in order

    def within(self, window: int) -> Groups:
        """The same for layers with a sliding window."""
        return replace(self, buckets=[bucket.within(window) for bucket in self.buckets])

    def queries(self, packed: Tensor) -> list[Tensor]:
        """The queries [S, H, T, D] of every bucket, of tokens [N, H, D]."""
        if self.order is not None:
            return [_rows(packed, bucket.queries, bucket.contiguous) for bucket in self.buckets]
        # the gradient of parts that make up the sequence is made of theirs, without zeros that are added up
        sizes = [self.buckets[number].queries.numel() for number in self.places]
        parts = dict(zip(self.places, packed.split(sizes) if len(sizes) > 1 else [packed], strict=True))
        return [_unpacked(parts[number], bucket.queries) for number, bucket in enumerate(self.buckets)]

    def joined(self, outputs: list[Tensor]) -> Tensor:
        """The outputs [S T, H, D] of all buckets as one of the sequence [N, H, D]."""
        out = torch.cat([outputs[number] for number in self.places]) if len(outputs) > 1 else outputs[0]
        return out if self.order is None else out.index_select(0, self.order)

    @classmethod
    def of(cls, segments: Sequence[Segment], *, causal: bool, device: torch.device) -> Groups:
        """Segments of similar length together."""
        total = sum(segment.length for segment in segments)
        chosen = [number for number, segment in enumerate(segments) if segment.length]
        chosen.sort(key=lambda n: (segments[n].prefix is not None, segments[n].length))
        before = max((_before(segments[n], segments) for n in chosen), default=0)
        buckets, real = [], []
        while chosen:
            longest = segments[chosen[-1]]
            pairs = 0 if longest.prefix is None else longest.length * (before + longest.length)
            first = len(chosen) - 1
            while first and _fit(segments[chosen[first - 1]], longest) and (len(chosen) - first) * pairs < PAIRS:
                first -= 1
            chosen, last = chosen[:first], chosen[first:]
            bucket, own = _bucket([segments[n] for n in sorted(last)], segments, causal)
            buckets.append(bucket)
            real.append(own)
        places = sorted(range(len(buckets)), key=lambda number: int(buckets[number].queries[0, 0]))
        order, offset = torch.empty(total, dtype=torch.long), 0
        for bucket, own in ((buckets[number], real[number]) for number in places):
            order[bucket.queries[own]] = offset + own.flatten().nonzero().flatten()
            offset += own.numel()
        ordered = offset == total and bool((order == torch.arange(total)).all())
        return cls([bucket.to(device) for bucket in buckets], places, None if ordered else to_device(order, device))


def _before(segment: Segment, segments: Sequence[Segment]) -> int:
    """Tokens of a segment's prefix."""
    return 0 if segment.prefix is None else segments[segment.prefix].length


def _fit(segment: Segment, longest: Segment) -> bool:
    """Whether two segments can share a call without much padding."""
    return segment.length >= MIN_FILL * longest.length and (segment.prefix is None) == (longest.prefix is None)


def _bucket(chosen: list[Segment], segments: Sequence[Segment], causal: bool) -> tuple[Bucket, Tensor]:
    """The bucket of some segments, and which of its queries [S, T] are real."""
    starts = torch.tensor([segment.start for segment in chosen])[:, None]
    lengths = torch.tensor([segment.length for segment in chosen])[:, None]
    index = torch.arange(int(lengths.max()))
    own = index < lengths
    queries = torch.where(own, starts + index, starts)
    first, count = int(starts[0]), own.numel()
    in_order = bool((queries.flatten() == torch.arange(first, first + count)).all())
    contiguous = slice(first, first + count) if in_order else None
    if chosen[0].prefix is None:
        # padding comes last, so a causal mask hides it; full attention needs a mask of its own
        mask = None if causal or bool(own.all()) else own[:, None, None, :]
        return Bucket(queries, queries, mask, contiguous, torch.zeros(len(chosen), dtype=torch.long)), own
    prefixes = [segments[segment.prefix] for segment in chosen if segment.prefix is not None]
    before = torch.arange(max(prefix.length for prefix in prefixes))
    seen = before < torch.tensor([prefix.length for prefix in prefixes])[:, None]
    begins = torch.tensor([prefix.start for prefix in prefixes])[:, None]
    keys = torch.cat([torch.where(seen, begins + before, begins), queries], 1)
    triangle = torch.ones(len(index), len(index), dtype=torch.bool).tril()
    rows = seen[:1] if bool(seen.all()) else seen  # prefixes of one length have one mask
    mask = torch.cat([rows[:, None, :].expand(-1, len(index), -1), triangle.expand(len(rows), -1, -1)], 2)
    return Bucket(queries, keys, mask[:, None], contiguous, seen.sum(1)), own


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    plan: Plan | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed sequence: query [1, H, N, D], key and value [1, K, N, D] to [1, N, H, D].

    Text comes with a plan; a vision tower gives the boundaries of its images, each with full attention.
    """
    if plan is None:
        assert cu_seq_lens_q is not None, "neither a plan nor the boundaries of images"
        plan = _images(cu_seq_lens_q)
    window = window_of(module) if plan.causal else None
    query, key, value = as_computed(query, key, value)
    reason = unsupported(query, dropout)
    say_once(query.device, reason)
    packed = [tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value)]
    if not reason:
        out = varying(packed[0], packed[1], packed[2], plan.lengths, causal=plan.causal, window=window, scale=scaling)
        return out[None], None
    groups = plan.groups(window)
    outputs = []
    for bucket, q in zip(groups.buckets, groups.queries(packed[0]), strict=True):
        contiguous = bucket.contiguous if bucket.keys.shape == bucket.queries.shape else None
        k, v = (_rows(tensor, bucket.keys, contiguous) for tensor in packed[1:])
        if bucket.mask is not None and q.is_cuda and q.shape[1] != k.shape[1]:
            # CUDA's kernels that take masks take no groups of heads; what is left would hold all scores in float32
            k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
        out = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=bucket.additive(_computed(q)),
            dropout_p=dropout,
            is_causal=plan.causal and bucket.mask is None,
            scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return groups.joined(outputs)[None], None


def window_of(attention: Any) -> int | None:
    """The sliding window of an attention layer of transformers, in tokens; None: full attention.

    Some families set it on the layer, some in the configuration only, per layer or for all of them.
    """
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window or None
    config = getattr(attention, "config", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and kinds[attention.layer_idx] != "sliding_attention":
        return None
    return getattr(config, "sliding_window", None) or None


_PLANS = WeakTensorKeyDictionary()  # by boundaries: gone with them, at the end of the forward pass


def _images(boundaries: Tensor) -> Plan:
    """A plan for images, once for all layers, because their boundaries have to be read from the device."""
    if boundaries not in _PLANS:
        segments = [Segment(start, end - start) for start, end in pairwise(boundaries.tolist())]
        _PLANS[boundaries] = Plan.of(segments, causal=False, device=boundaries.device)
    found: Plan = _PLANS[boundaries]
    return found


def _rows(packed: Tensor, index: Tensor, contiguous: slice | None) -> Tensor:
    """Tokens [N, H, D] of a packed sequence as [S, H, T, D]."""
    taken = packed[contiguous] if contiguous is not None else packed.index_select(0, index.flatten())
    return _unpacked(taken, index)


def _unpacked(taken: Tensor, index: Tensor) -> Tensor:
    """The tokens [S T, H, D] of an index [S, T] as [S, H, T, D]."""
    return taken.reshape(*index.shape, *taken.shape[1:]).transpose(1, 2)


def _computed(tensor: Tensor) -> torch.dtype:
    """The precision in which attention takes its inputs."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


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
