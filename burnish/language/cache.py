"""A KV cache of rows that all end at the same column, so that one slice stores a token of every row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 64  # columns that memory grows by at least, and by a quarter of what there is
SLACK = 16  # columns at least that rows may move along before they are moved back


class Cache:
    """Active rows come first; each begins at its own column, and a mask hides the columns before it.

    Keys are rotated already, so a row may begin at any column. Memory is one tensor per layer. It grows with the
    columns in use, a layer at a time, and only for the rows that are still to come.
    """

    def __init__(
        self, *, layers: int, rows: int, pairs: int, longest: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Make an empty one.

        Args:
            layers: of the decoder.
            rows: at most, at once.
            pairs: key-value heads.
            longest: columns of the longest row.
            width: of a head.
            dtype: of keys and values.
            device: where they lie.
        """
        self.pairs, self.rows = pairs, rows
        self.limit = longest + max(longest // 8, SLACK)
        self.memory = [torch.zeros(2, rows * pairs, 0, width, dtype=dtype, device=device) for _ in range(layers)]
        self.hidden = torch.zeros(rows, 1, self.limit, dtype=dtype, device=device)  # -inf before a row's beginning
        self.begin: list[int] = []
        self.end = 0
        self.first = 0  # column that is visible to any row

    @property
    def full(self) -> bool:
        """Whether rows must be moved before the next token."""
        return self.end == self.limit

    @property
    def columns(self) -> int:
        """That there is memory for."""
        return self.memory[0].shape[2]

    def enter(self, prompts: Sequence[tuple[Tensor, int]], longest: int = 0) -> None:
        """Add rows.

        Args:
            prompts: keys and values [layers, 2, K, L, W] of each, and the number of rows that begin with it.
            longest: columns of the longest prompt that will enter before the next token.
        """
        longest = max(longest, *(cached.shape[3] for cached, _ in prompts))
        if longest > self.end:
            self._shift(longest)
        self._reserve(self.end)
        for cached, count in prompts:
            row, start = len(self.begin), self.end - cached.shape[3]
            for layer, own in zip(self.memory, cached, strict=True):
                target = layer[:, row * self.pairs : (row + count) * self.pairs, start : self.end]
                target.unflatten(1, (count, self.pairs)).copy_(own[:, None])
            self.hidden[row : row + count, 0, :start] = -torch.inf
            self.hidden[row : row + count, 0, start:] = 0
            self.begin += [start] * count

    def keep(self, rows: Sequence[int], waiting: int = 0) -> None:
        """Drop all rows but these.

        Args:
            rows: in ascending order; they move to the front.
            waiting: rows that may still enter: memory need not grow for more than these.
        """
        first = next((new for new, old in enumerate(rows) if new != old), len(rows))
        used = slice(min((self.begin[row] for row in rows), default=self.end), self.end)
        if first < len(rows):
            index = torch.tensor(rows[first:], dtype=torch.long, device=self.hidden.device)
            pairs = (index[:, None] * self.pairs + torch.arange(self.pairs, device=index.device)).flatten()
            target = slice(first * self.pairs, len(rows) * self.pairs)
            for layer in self.memory:  # one after the other, so that only one is there twice
                layer[:, target, used] = layer[:, :, used].index_select(1, pairs)
            self.hidden[first : len(rows)] = self.hidden.index_select(0, index)
        self.begin = [self.begin[row] for row in rows]
        self.rows = min(self.rows, len(rows) + waiting)

    def read(self, row: int, columns: int) -> Tensor:
        """A copy of the keys and values [layers, 2, K, columns, W] that a row begins with."""
        own, first = slice(row * self.pairs, (row + 1) * self.pairs), self.begin[row]
        return torch.stack([layer[:, own, first : first + columns] for layer in self.memory])

    def advance(self) -> Tensor:
        """Add a column for the next token of every row; returns the additive mask [B K, 1, C] of visible columns."""
        if self.full:
            self._shift(0)
        self.end += 1
        self._reserve(self.end)
        self.first = min(self.begin)
        mask = self.hidden[: len(self.begin), :, self.first : self.end]
        return mask if self.pairs == 1 else mask.repeat_interleave(self.pairs, 0)

    def window(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [B K, C, W] of every layer for the visible columns; the last is that of the next token."""
        rows, columns = len(self.begin) * self.pairs, self.end - self.first
        found = []
        for layer in self.memory:
            keys, values = layer.narrow(1, 0, rows).narrow(2, self.first, columns).unbind(0)
            found.append((keys, values))
        return found

    def _reserve(self, columns: int) -> None:
        """Have memory for as many columns."""
        if columns <= self.columns:
            return
        grown = min(max(columns, self.columns + max(BLOCK, self.columns // 4)), self.limit)
        held, rows = self.columns, self.rows * self.pairs
        for number, old in enumerate(self.memory):
            # zeros: a column that a row doesn't use is multiplied with a weight of 0, which doesn't hide NaN
            new = old.new_zeros(2, rows, grown, old.shape[3])
            new[:, :, :held] = old[:, :rows]
            self.memory[number] = new

    def _shift(self, least: int) -> None:
        """Move the rows left, so that the longest begins at the first column; they end at column ``least`` or later."""
        start = min(self.begin, default=self.end)
        used = self.end - start
        more = max(least - used, 0)
        assert used + more < self.limit, "the cache is too short for a prompt with its response"
        self._reserve(used + more)
        rows = len(self.begin)
        for tensor in (*(layer[:, : rows * self.pairs] for layer in self.memory), self.hidden[:rows, 0, :, None]):
            tensor[..., more : more + used, :] = tensor[..., start : self.end, :].clone()
        self.hidden[:rows, :, :more] = -torch.inf
        self.hidden[:rows, :, more + used :] = 0
        self.begin = [begin - start + more for begin in self.begin]
        self.end = more + used
