"""Prompts of a data set that several ranks learn from: each of them reads what those show that it learns itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from burnish.training.ranks import Ranks, own_rows
from burnish.types.batch import Gathered
from burnish.types.columns import LazyTensors, Made
from burnish.types.completion import Encoded, Features
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import LruCache

Encode = Callable[[Sequence[Prompt]], Gathered[Encoded]]
OVERHEAD = 1024  # bytes of an outline, beside its tokens


@dataclass(frozen=True)
class Outline:
    """A prompt without its pixels, which all ranks know."""

    ids: Tensor  # [L] long
    positions: Tensor  # [A, L] long
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]  # of what it shows, by name
    features: Features  # without its tensors

    @classmethod
    def of(cls, encoded: Encoded) -> Outline:
        """That of one prompt."""
        features = encoded.features[0]
        shapes = {name: (tuple(one.shape), one.dtype) for name, one in features.tensors.items()}
        return cls(encoded.ids[0], encoded.positions[0], shapes, replace(features, tensors={}))

    @property
    def bytes(self) -> int:
        """In memory."""
        return OVERHEAD + sum(one.nbytes for one in (self.ids, self.positions, *self.features.kinds.values()))


class SharedPrompts:
    """Encodes prompts for all ranks. What a prompt shows is processed by one of them for its length, and by those that
    use its row, where they use it; pixels never travel."""

    def __init__(self, encode: Encode, ranks: Ranks, *, cached: int) -> None:
        """Take over who encodes.

        Args:
            encode: in this process; it keeps what was used last.
            ranks: all of which encode the same prompts together.
            cached: bytes of tokens of prompts that are kept.
        """
        self.encode, self.ranks = encode, ranks
        self._known: LruCache[Outline] = LruCache(cached, lambda outline: outline.bytes)

    def __call__(self, prompts: Sequence[Prompt]) -> Gathered[Encoded]:
        """As the encoder does, with what is shown in place of pixels.

        Raises:
            UserError: one of them can't be read, on whichever rank.
        """
        unique = {prompt.uid: prompt for prompt in prompts}
        outlines = self._outlines({uid: prompt for uid, prompt in unique.items() if prompt.media})
        table = Encoded.cat([
            self._lazily(prompt, outlines[uid]) if uid in outlines else self.encode([prompt]).rows()
            for uid, prompt in unique.items()
        ])  # fmt: skip
        row = {uid: i for i, uid in enumerate(unique)}
        return Gathered(table=table, index=torch.tensor([row[prompt.uid] for prompt in prompts], dtype=torch.long))

    def _outlines(self, prompts: dict[str, Prompt]) -> dict[str, Outline]:
        known = {uid: found for uid in prompts if (found := self._known.find(uid)) is not None}
        new = [uid for uid in prompts if uid not in known]
        if not new:
            return known
        mine: list[Outline] | str
        try:
            own = [prompts[uid] for uid in new[own_rows(self.ranks, len(new))]]
            mine = self._looked_at(own) if own else []
        except UserError as error:
            mine = str(error)  # all ranks stop, and none waits for another
        gathered = self.ranks.gather(mine)
        if failed := next((one for one in gathered if isinstance(one, str)), None):
            raise UserError(failed)
        every = [outline for several in gathered if not isinstance(several, str) for outline in several]
        for uid, outline in zip(new, every, strict=True):
            known[uid] = self._known.get(uid, partial(_given, outline))
        return known

    def _looked_at(self, prompts: Sequence[Prompt]) -> list[Outline]:
        encoded = self.encode(prompts).rows()  # together: other processes may read them at once
        return [Outline.of(encoded.select([row])) for row in range(len(encoded))]

    def _lazily(self, prompt: Prompt, outline: Outline) -> Encoded:
        def rows_of(name: str, rows: Tensor) -> Tensor:
            return self.encode([prompt]).table.features[0].tensors[name].index_select(0, rows)

        if any(not shape for shape, _ in outline.shapes.values()):  # single numbers have no rows
            return self.encode([prompt]).rows()
        sources = {name: Made(*about, partial(rows_of, name)) for name, about in outline.shapes.items()}
        features = replace(outline.features, tensors=LazyTensors(sources))
        return Encoded(ids=[outline.ids], positions=[outline.positions], features=[features])


def _given(outline: Outline) -> Outline:
    return outline
