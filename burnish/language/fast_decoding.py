"""Decoding by Burnish's own layers and cache: rows that end make room for waiting ones at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby

import torch
from torch import Tensor, nn

from burnish.language.attention import Plan
from burnish.language.cache import Cache
from burnish.language.decoding import IDLE, Active, DecodingRows
from burnish.language.layers import Layers
from burnish.language.model import PackedModel
from burnish.language.segments import Segment
from burnish.types.completion import Features

PREFILL = 8192  # prompt tokens per forward pass


class FastDecoder:
    """Prefills prompts under Burnish's plan, and runs a token per row and step."""

    def __init__(self, model: PackedModel, network: nn.Module, rows: DecodingRows) -> None:
        self.model, self.network, self.rows, self.prompts = model, network, rows, rows.prompts
        self.device = rows.device
        self.layers = Layers(model.text(network), model.head(network).weight, compute=model.compute)
        self.embedding = model.text(network).embed_tokens
        self.prefilled: dict[int, tuple[Tensor, Tensor]] = {}  # by prompt: last state, keys and values
        last = max((p for p in self.prompts.next_position), default=0) + rows.longest
        positions = torch.arange(last + 1, device=self.device)[None]
        self.rotations = self.layers.rotation(positions.expand(model.axes, 1, -1) if model.axes > 1 else positions)

    def run(self, batch_size: int, check_cancelled: Callable[[], None]) -> None:
        """Decode all rows."""
        rows, waiting = self.rows, self.rows.waiting
        longest = max(self.prompts.lengths[rows.index[row]] for row in waiting) + rows.longest
        cache = Cache(
            layers=len(self.layers.layers),
            rows=min(batch_size, len(waiting)),
            pairs=self.layers.pairs,
            longest=longest,
            width=self.layers.width,
            dtype=self.layers.compute,
            device=self.device,
        )
        batch, waiting = waiting[: cache.rows], waiting[cache.rows :]
        live, x = self._admit(batch, waiting, cache)
        while len(live.row):
            check_cancelled()
            tokens = rows.next_tokens(self.layers.logits(x), live)
            done = int(live.done.sum())
            rows.tell_ended(live, done)
            compact = done >= IDLE * len(live.row) or (done > 0 and cache.full)
            if compact:
                rows.store_lengths(live)
                unfinished = (~live.done).nonzero().flatten()
                cache.keep(unfinished.tolist(), len(waiting))
                live, tokens = live.keep(unfinished), tokens[unfinished]
            if len(live.row):
                x = self.layers.step(self.embedding(tokens), self.rotations[live.position - 1], cache)
            if compact and waiting:
                free = cache.rows - len(live.row)
                batch, waiting = waiting[:free], waiting[free:]
                new, further = self._admit(batch, waiting, cache)
                live, x = live.followed_by(new), torch.cat([x[: len(live.row)], further.to(x.dtype)])

    def _admit(self, batch: list[int], waiting: list[int], cache: Cache) -> tuple[Active, Tensor]:
        """Add rows to the cache; returns also the state [N, D] that predicts each row's first token.

        Keys and values of prompts are held beside the cache only while rows of this batch, or waiting ones, need them.
        """
        groups = [(prompt, len(list(rows))) for prompt, rows in groupby(self.rows.index[row] for row in batch)]
        packs = self._packs([prompt for prompt, _ in groups])
        longest = max(self.prompts.lengths[prompt] for prompt, _ in groups)
        further = {self.rows.index[row] for row in waiting}
        left = Counter(prompt for prompt, _ in groups)
        states = []
        for prompt, count in groups:
            if prompt not in self.prefilled:
                self._prefill(next(packs))
            state, cached = self.prefilled[prompt]
            cache.enter([(cached, count)], longest)
            states += [state] * count
            left[prompt] -= 1
            if not left[prompt] and prompt not in further:
                del self.prefilled[prompt]
        # copied where it is a slice, which would keep all prompts of its forward pass
        self.prefilled = {prompt: (state, cached.contiguous()) for prompt, (state, cached) in self.prefilled.items()}
        return self.rows.enter(batch), torch.stack(states)

    def _packs(self, prompts: list[int]) -> Iterator[list[int]]:
        """Prompts that are still to be computed, once each, as they are packed into forward passes."""
        batch: list[int] = []
        for prompt in [prompt for prompt in dict.fromkeys(prompts) if prompt not in self.prefilled]:
            if batch and sum(self.prompts.lengths[p] for p in batch) + self.prompts.lengths[prompt] > PREFILL:
                yield batch
                batch = []
            batch.append(prompt)
        if batch:
            yield batch

    def _prefill(self, batch: list[int]) -> None:
        """Compute the last state, keys and values of prompts in one forward pass."""
        chosen = self.prompts.select(batch)
        ids = torch.cat(chosen.ids)
        slots = torch.isin(ids, self.model.placeholders).to(self.device)
        features: list[Features] = [own for own in chosen.features if own.size]
        embedded = self.model.embed(self.network, ids.to(self.device), slots, features)
        seen, deep = embedded.at(torch.arange(len(ids), device=self.device))
        positions = torch.cat(chosen.positions, 1).to(self.device)
        segments, start = [], 0
        for length in chosen.lengths:
            segments.append(Segment(start, length))
            start += length
        plan = Plan.of(segments, device=self.device)
        positions = positions[:, None] if self.model.axes > 1 else positions
        last = torch.tensor([segment.start + segment.length - 1 for segment in segments], device=self.device)
        x, cached = self.layers.prefill(embedded.tokens, positions, plan, seen[0], deep, last)
        for number, (prompt, segment) in enumerate(zip(batch, segments, strict=True)):
            own = slice(segment.start, segment.start + segment.length)
            self.prefilled[prompt] = x[number], cached[..., own, :]
