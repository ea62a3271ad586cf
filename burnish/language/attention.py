"""Attention over a packed sequence: each segment attends to itself, and to its prefix if it has one.

On GPUs in half precision one kernel call takes segments of any length without masks or padding; elsewhere segments are
padded to batches. Everything else runs on the tokens without padding. It is registered with transformers' attention
interface; the name contains "flash" because transformers' vision towers then pass all images in one call.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from burnish.training.sequences import Split
from burnish.types.batch import to_device

log = logging.getLogger(__name__)

PAIRS = 2**26  # of tokens in the mask of one call, if it has several segments
WIDEST = 256  # width of a head, that the kernel has been written for
HALF = (torch.bfloat16, torch.float16)


ALONE = Split()  # who has all tokens

# segments that are attended together: indices of queries [S, T] and keys [S, P + T] long in the sequence, padded with
# the segment's first; and a mask [S, 1, T, P + T] bool, where it is not causal, or full
Call = tuple[Tensor, Tensor, Tensor | None]


@dataclass(frozen=True)
class Segment:
    """A contiguous part of the sequence with causal attention, and full attention to the segment ``prefix``."""

    start: int
    length: int
    prefix: int | None = None


class Plan:
    """How the segments of a packed sequence are attended; what a kernel needs is made when it is first asked for."""

    def __init__(
        self,
        segments: Sequence[Segment],
        *,
        causal: bool = True,
        device: torch.device | str = "cpu",
        split: Split = ALONE,
    ) -> None:
        """Args: ``segments`` cover the sequence exactly, whose tokens ranks may ``split``."""
        self.segments, self.causal, self.device, self.split = segments, causal, torch.device(device), split
        self._padded: dict[int | None, tuple[list[Call], Tensor]] = {}

    def _prefix(self, segment: Segment) -> Segment:
        return Segment(segment.start, 0) if segment.prefix is None else self.segments[segment.prefix]

    def padded(self, window: int | None) -> tuple[list[Call], Tensor]:
        """The segments as padded batches, and the place [N] of each token's output among theirs, one after the other.

        Args:
            window: tokens that a token of a layer with a sliding window sees, itself included; None: all.
        """
        if window not in self._padded:
            parts, tokens = [], []
            for segments in self._calls():
                part, real = self._indices(segments, window)
                parts.append(part)
                tokens.append(real)
            joined = torch.cat(tokens)
            # a stable sort keeps padding first, and each token has one place
            order = joined.argsort(stable=True)[int((joined < 0).sum()) :]
            self._padded[window] = parts, to_device(order, self.device)
        return self._padded[window]

    def _indices(self, segments: Sequence[Segment], window: int | None) -> tuple[Call, Tensor]:
        """What is attended in one call, and the tokens [S T] of the queries; -1 for padding."""
        prefixes = [self._prefix(segment) for segment in segments]
        starts, lengths, begins, before = (
            torch.tensor(values)[:, None]
            for values in (
                [segment.start for segment in segments], [segment.length for segment in segments],
                [prefix.start for prefix in prefixes], [prefix.length for prefix in prefixes],
            )
        )  # fmt: skip
        index, shared = torch.arange(int(lengths.max())), torch.arange(int(before.max()))
        real, seen = index < lengths, shared < before
        queries = torch.where(real, starts + index, starts)
        keys = torch.cat([torch.where(seen, begins + shared, starts), queries], 1)
        place = before + index  # [S, T], within prefix and segment
        distance = place[:, :, None] - torch.cat([shared.expand(len(seen), -1), place], 1)[:, None]
        mask = torch.cat([seen, real], 1)[:, None].expand_as(distance)
        if self.causal:
            mask = mask & (distance >= 0)
            if window is not None:
                mask = mask & (distance < window)
        # padding comes last, so a causal call hides it
        plain = not len(shared) and (window is None or len(index) <= window) if self.causal else bool(real.all())
        hidden = None if plain else to_device(mask[:, None], self.device)
        call = to_device(queries, self.device), to_device(keys, self.device), hidden
        return call, torch.where(real, queries, -1).flatten()

    def _calls(self) -> Iterator[list[Segment]]:
        """Segments without a prefix, then those with one, as many in a call as its mask may have pairs."""
        for has_prefix in (False, True):
            rest = [one for one in self.segments if one.length and (one.prefix is not None) == has_prefix]
            if not rest:
                continue
            longest = max(segment.length for segment in rest)
            before = max(self._prefix(segment).length for segment in rest)
            count = max(PAIRS // (longest * (before + longest)), 1)
            yield from (rest[start : start + count] for start in range(0, len(rest), count))

    @cached_property
    def lengths(self) -> tuple[Tensor | None, tuple[Tensor, Tensor, int, int]]:
        """What the kernel for segments of any length needs: the keys [K] long in the sequence, if they are not the
        sequence; and where segments begin among queries and among keys, [S + 1] int32 each, with their largest lengths.
        """
        chosen = sorted((segment for segment in self.segments if segment.length), key=lambda segment: segment.start)
        own = [segment.length for segment in chosen]
        assert [segment.start for segment in chosen] == [0, *accumulate(own)][:-1], "segments leave gaps or overlap"
        before = [self._prefix(segment) for segment in chosen]
        counts = [prefix.length + length for prefix, length in zip(before, own, strict=True)]
        index = None
        if counts != own:
            pairs = zip(before, chosen, strict=True)
            ranges = [torch.arange(part.start, part.start + part.length) for pair in pairs for part in pair]
            index = to_device(torch.cat(ranges), self.device)
        queries, keys = (
            to_device(torch.tensor([0, *accumulate(sizes)], dtype=torch.int32), self.device) for sizes in (own, counts)
        )
        return index, (queries, keys, max(own, default=0), max(counts, default=0))


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    plan: Plan | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed sequence: query [1, H, N, D], key and value [1, K, N, D] to [1, N, H, D].

    Text comes with a plan; a vision tower gives the boundaries of its images, each with full attention. Of a sequence
    that ranks split, N are the tokens of this one.
    """
    if plan is None:
        assert cu_seq_lens_q is not None, "neither a plan nor the boundaries of images"
        plan = _images(cu_seq_lens_q)
    window = window_of(module) if plan.causal else None
    kind = query.device.type
    if query.is_cuda and torch.is_autocast_enabled(kind):  # whose list doesn't have the kernel
        query, key, value = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (query, key, value))
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    run = partial(_in_full, plan=plan, window=window, scaling=scaling)
    return plan.split.attend(run, q, k, v), None


def _in_full(
    query: Tensor, key: Tensor, value: Tensor, *, plan: Plan, window: int | None, scaling: float | None
) -> Tensor:
    """Attention of all tokens: queries [1, N, H, D], keys and values [1, N, K, D] to [1, N, H, D]."""
    q, k, v = (tensor.squeeze(0) for tensor in (query, key, value))  # an index would copy their gradients
    known = q.dtype in HALF and q.shape[-1] <= WIDEST and q.shape[-1] % 8 == 0
    if q.is_cuda and known and has_kernel(q.device):
        return _in_one_call(q, k, v, plan, window=window, scale=scaling)[None]
    parts, order = plan.padded(window)
    outputs = []
    for query_index, key_index, mask in parts:
        queries, keys, values = _rows(q, query_index), _rows(k, key_index), _rows(v, key_index)
        if mask is not None and q.is_cuda:
            # CUDA's kernels that take masks take no groups of heads; what is left would hold all scores in float32
            keys, values = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (keys, values))
        out = F.scaled_dot_product_attention(
            queries, keys, values,
            attn_mask=mask, is_causal=plan.causal and mask is None, scale=scaling,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )  # fmt: skip
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, order)[None]


def _rows(packed: Tensor, index: Tensor) -> Tensor:
    """Tokens [N, H, D] of a packed sequence by an index [S, T] as [S, H, T, D]."""
    return packed.index_select(0, index.flatten()).view(*index.shape, *packed.shape[1:]).transpose(1, 2)


def _in_one_call(
    query: Tensor, key: Tensor, value: Tensor, plan: Plan, *, window: int | None, scale: float | None
) -> Tensor:
    """Attention of queries [N, H, D] over keys and values [N, K, D], segment by segment: [N, H, D].

    Flash attention aligns a causal mask at the end of keys and queries, so that a response whose keys begin with those
    of its prompt sees all of the prompt and, of itself, what came before.
    """
    from torch.nn.attention.varlen import varlen_attn

    index, lengths = plan.lengths
    if index is not None:
        key, value = key.index_select(0, index), value.index_select(0, index)
    left = -1 if window is None else window - 1  # the kernel doesn't count the token itself
    out = varlen_attn(
        query, key, value, *lengths,
        scale=scale, window_size=(left, 0 if plan.causal else -1), enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    assert isinstance(out, Tensor)  # nothing else was asked for
    return out


@cache
def has_kernel(device: torch.device) -> bool:
    """Whether PyTorch and the GPU have the kernel for segments of any length."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        named: set[str] = set()
    else:
        named = set(inspect.signature(varlen_attn).parameters)
    if (
        {"scale", "window_size", "enable_gqa"} <= named
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and torch.backends.cuda.is_flash_attention_available()
    ):
        return True
    log.warning(
        "packed sequences are attended in padded batches, which is slower: PyTorch %s on %s has no "
        "torch.nn.attention.varlen with windows and groups of heads", torch.__version__,
        torch.cuda.get_device_name(device),
    )  # fmt: skip
    return False


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
        _PLANS[boundaries] = Plan(segments, causal=False, device=boundaries.device)
    return _PLANS[boundaries]  # type: ignore[no-any-return]
