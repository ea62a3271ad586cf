"""Decoding without a cache, for classes whose cache gives other numbers than their forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from burnish.models.language.own.collation import Conversation, Lengths
from burnish.models.language.own.forwards import Forwards


class Anew:
    """Rows of which every token is computed with all that stand before it; in the place of ``Cached``."""

    def __init__(
        self, forwards: Forwards, network: Any, rows: Sequence[Conversation], *, lengths: Lengths, fill: dict[str, int]
    ) -> None:
        """Begin with prompts.

        Args:
            forwards: of the class.
            network: whose weights sample.
            rows: prompts.
            lengths: of rows that share a forward.
            fill: kinds of the policy's tokens.
        """
        self._forwards, self._network, self._rows = forwards, network, list(rows)
        self._lengths, self._fill = lengths, fill
        self._logits: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """Logits [B, V] float32 of the last token of each row."""
        if self._logits is None:
            self._logits = self._last()
        return self._logits

    def select(self, rows: Tensor) -> None:
        """Go on with these rows in this order; a row may be taken several times."""
        self._rows = [self._rows[row] for row in rows.tolist()]
        if self._logits is not None:
            self._logits = self._logits.index_select(0, rows)

    def step(self, tokens: Tensor) -> None:
        """Add a token [B, 1] to each row."""
        added = tokens.cpu()
        self._rows = [self._longer(row, own) for row, own in zip(self._rows, added, strict=True)]
        self._logits = None

    def _longer(self, row: Conversation, tokens: Tensor) -> Conversation:
        kinds = {
            name: torch.cat([kind, torch.full_like(tokens, self._fill.get(name, 0))])
            for name, kind in row.features.kinds.items()
        }
        return Conversation(torch.cat([row.ids, tokens]), replace(row.features, kinds=kinds))

    def _last(self) -> Tensor:
        found: dict[int, Tensor] = {}
        for group in self._forwards.collation.groups(self._rows, self._lengths):
            inputs = self._forwards.inputs(self._network, [self._rows[row] for row in group])
            out, _ = self._forwards.call(self._network, inputs | {"use_cache": False}, logits="last")
            found |= dict(zip(group, out.logits[:, -1].float(), strict=True))
        return torch.stack([found[row] for row in range(len(self._rows))])
