"""Sequence parallelism: each rank of a context group has a chunk of every token sequence.

Between layers of attention a rank holds all features of its own tokens, and within them all tokens of its own heads
(Ulysses, Jacobs et al. 2023, arXiv:2309.14509). What a network makes of the tokens is gathered at the end, so that all
ranks of a group compute the same loss. Its gradient reaches a rank for its own tokens alone: the gradients of weights
are those of a single rank once they are summed over the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed._functional_collectives import all_to_all_single

from burnish.training.ranks import SINGLE_RANK, Ranks


def chunks(count: int, size: int) -> list[int]:
    """Lengths of ``size`` chunks of ``count`` things, which differ by 1 at most; longer ones come first."""
    return [(count + size - 1 - number) // size for number in range(size)]


def ranges(lengths: Sequence[int]) -> list[range]:
    """Things of chunks that follow one another."""
    return [range(start, end) for start, end in pairwise([0, *accumulate(lengths)])]


@dataclass(frozen=True)
class Split:
    """A sequence that the ranks of a context group share out."""

    ranks: Ranks = SINGLE_RANK
    counts: Sequence[int] = ()  # of its tokens on each rank: chunks that follow one another

    @property
    def own(self) -> slice:
        """This rank's chunk."""
        own = ranges(self.counts)[self.ranks.rank]
        return slice(own.start, own.stop)

    def gathered(self, own: Tensor, axis: int = 0) -> Tensor:
        """The tokens of all ranks along an axis; the gradient of this rank's reaches it, and that of no others."""
        rows = own.detach().transpose(0, axis)
        padded = rows.new_zeros(max(*self.counts, 1), *rows.shape[1:])
        padded[: len(rows)] = rows
        every = [torch.empty_like(padded) for _ in self.counts]
        dist.all_gather(every, padded, group=self.ranks.group)
        parts = [one[:count].transpose(0, axis) for one, count in zip(every, self.counts, strict=True)]
        parts[self.ranks.rank] = own
        return torch.cat(parts, axis)

    def attend(
        self,
        attention: Callable[[Tensor, Tensor, Tensor], Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Split | None = None,
    ) -> Tensor:
        """Attention of this rank's queries [B, n, H, D] to the keys and values of all, of which it has [B, m, K, D].

        Ranks need not divide the heads: some have one more. Those with keys of unequal use get them once per query.

        Args:
            attention: of all N tokens of some heads: [B, N, h, D], and the keys and values of these, to [B, N, h, D].
            query: of the tokens of this rank.
            key: of tokens of this rank.
            value: the same.
            keys: the sequence of these, unless it is that of the queries.

        Returns:
            [B, n, H, D].
        """
        if self.ranks.size == 1:
            return attention(query, key, value)
        kind = query.device.type
        if torch.is_autocast_enabled(kind):  # or normalised queries would travel in float32, beside values of less
            query, key, value = (one.to(torch.get_autocast_dtype(kind)) for one in (query, key, value))
        heads = [list(own) for own in ranges(chunks(query.shape[2], self.ranks.size))]
        groups = [[head * key.shape[2] // query.shape[2] for head in own] for own in heads]
        groups = [list(dict.fromkeys(own)) if len({own.count(one) for one in own}) == 1 else own for own in groups]
        there = self if keys is None else keys
        own_heads = self._heads(query, heads), there._heads(key, groups), there._heads(value, groups)
        return self._tokens(attention(*own_heads), [len(own) for own in heads])

    def _heads(self, tokens: Tensor, heads: Sequence[Sequence[int]]) -> Tensor:
        """All tokens [B, N, h, D] of the heads of this rank, from all heads [B, n, H, D] of its tokens."""
        rows, count, _, width = tokens.shape
        each, own = rows * count * width, len(heads[self.ranks.rank])
        sent = torch.cat([tokens.select(2, head) for some in heads for head in some])
        come = self._exchanged(
            sent, [len(some) * each for some in heads], [own * rows * width * count for count in self.counts]
        )
        blocks = [one.view(own, rows, count, width) for one, count in zip(come, self.counts, strict=True)]
        return torch.cat(blocks, 2).permute(1, 2, 0, 3)

    def _tokens(self, heads: Tensor, counts: Sequence[int]) -> Tensor:
        """All heads [B, n, H, D] of the tokens of this rank, from all tokens [B, N, h, D] of its heads."""
        rows, _, own, width = heads.shape
        count = self.counts[self.ranks.rank]
        sent = torch.cat([one.flatten() for one in heads.split(list(self.counts), 1)])
        come = self._exchanged(
            sent, [rows * count * own * width for count in self.counts], [rows * count * h * width for h in counts]
        )
        return torch.cat([one.view(rows, count, h, width) for one, h in zip(come, counts, strict=True)], 2)

    def _exchanged(self, sent: Tensor, sizes: list[int], come: list[int]) -> list[Tensor]:
        """What comes from each rank, flat, with gradients, for values that are sent to one after the other."""
        group: Any = self.ranks.group
        found: Tensor = all_to_all_single(sent.flatten(), come, sizes, group)
        return list(found.split(come))
