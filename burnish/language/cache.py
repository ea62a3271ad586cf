"""A KV cache of rows that all end at the same column, so that one slice stores a token of every row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Cache:
    """Active rows come first; each begins at its own column, and a mask hides the columns before it.

    Keys are rotated already, so a row may begin at any column.
    """

    def __init__(
        self, *, layers: int, rows: int, pairs: int, columns: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.pairs, self.columns = pairs, columns
        self.memory = torch.zeros(layers, 2, rows * pairs, columns, width, dtype=dtype, device=device)
        self.hidden = torch.zeros(rows, 1, columns, dtype=dtype, device=device)  # -inf before a row's beginning
        self.begin: list[int] = []
        self.end = 0
        self.first = 0  # column that is visible to any row

    @property
    def full(self) -> bool:
        """Whether rows must be moved before the next token."""
        return self.end == self.columns

    def enter(self, prompts: Sequence[tuple[Tensor, int]]) -> None:
        """Add rows: keys and values [layers, 2, K, L, W] of each prompt, and the number of rows that begin with it."""
        longest = max(cached.shape[3] for cached, _ in prompts)
        if longest > self.end:
            self._shift(longest)
        for cached, count in prompts:
            row, start = len(self.begin), self.end - cached.shape[3]
            target = self.memory[:, :, row * self.pairs : (row + count) * self.pairs, start : self.end]
            target.unflatten(2, (count, self.pairs)).copy_(cached[:, :, None])
            self.hidden[row : row + count, 0, :start] = -torch.inf
            self.hidden[row : row + count, 0, start:] = 0
            self.begin += [start] * count

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, which move to the front in this order."""
        index = torch.tensor(rows, dtype=torch.long, device=self.memory.device)
        pairs = (index[:, None] * self.pairs + torch.arange(self.pairs, device=index.device)).flatten()
        self.begin = [self.begin[row] for row in rows]
        used = slice(min(self.begin, default=self.end), self.end)
        self.memory[:, :, : len(pairs), used] = self.memory[..., used, :].index_select(2, pairs)
        self.hidden[: len(rows)] = self.hidden.index_select(0, index)

    def advance(self) -> Tensor:
        """Add a column for the next token of every row; returns the additive mask [B K, 1, C] of visible columns."""
        if self.full:
            self._shift(0)
        self.end += 1
        self.first = min(self.begin)
        mask = self.hidden[: len(self.begin), :, self.first : self.end]
        return mask if self.pairs == 1 else mask.repeat_interleave(self.pairs, 0)

    def window(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [B K, C, W] of every layer for the visible columns; the last is that of the next token."""
        seen = self.memory[:, :, : len(self.begin) * self.pairs, self.first : self.end]
        return [(layer[0], layer[1]) for layer in seen]

    def _shift(self, least: int) -> None:
        """Move the rows left, so that the longest begins at the first column; they end at column ``least`` or later."""
        start = min(self.begin, default=self.end)
        used = self.end - start
        more = max(least - used, 0)
        assert used + more < self.columns, "the cache is too short for a prompt with its response"
        rows = len(self.begin)
        for tensor in (self.memory[:, :, : rows * self.pairs], self.hidden[:rows, 0, :, None]):
            tensor[..., more : more + used, :] = tensor[..., start : self.end, :].clone()
        self.hidden[:rows, :, :more] = -torch.inf
        self.hidden[:rows, :, more + used :] = 0
        self.begin = [begin - start + more for begin in self.begin]
        self.end = more + used
