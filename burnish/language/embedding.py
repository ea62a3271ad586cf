"""Where pixels meet text: what the vision tower made of them takes the places that were kept for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from burnish.language.model import Embedded


@dataclass(frozen=True)
class VisionOutput:
    """What a vision tower made of all images, or of all videos, in order."""

    placeholder: int  # id of the tokens that it takes the places of
    tokens: Tensor  # [T, D]
    deep: list[Tensor] = field(default_factory=list)  # for the states after each of the first layers: [T, D] each


def fill(tokens: Tensor, ids: Tensor, slots: Tensor, outputs: Sequence[VisionOutput]) -> Embedded:
    """Embeddings [M, D] of a table of tokens with pixels in the slots [M].

    Raises:
        ValueError: there are more or fewer slots than vision tokens: a prompt was cut through an image.
    """
    depth = max((len(output.deep) for output in outputs), default=0)
    deep = [tokens.new_zeros(int(slots.sum()), tokens.shape[1]) for _ in range(depth)]
    for output in outputs:
        here = slots & (ids == output.placeholder)
        if int(here.sum()) != len(output.tokens):
            raise ValueError(f"{int(here.sum())} tokens stand for pixels, but there are {len(output.tokens)}")
        tokens = tokens.masked_scatter(here[:, None], output.tokens.to(tokens.dtype))
        among = here[slots][:, None]
        deep = [
            before.masked_scatter(among, now.to(tokens.dtype)) for before, now in zip(deep, output.deep, strict=True)
        ]
    return Embedded(tokens, slots, deep)


def at_rows(embedded: Embedded, source: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Which tokens of a line stand for pixels [1, N], and the deep features of those, in order."""
    slots = embedded.slots[source]
    if not embedded.deep:
        return slots[None], []
    rank = embedded.slots.cumsum(0) - 1
    taken = rank[source[slots]]
    return slots[None], [layer.index_select(0, taken) for layer in embedded.deep]
