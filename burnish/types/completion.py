"""What a language model reads and what it writes: prompts as tokens with their media, and sampled responses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.types.batch import Batch, Gathered, shared


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """Processed pixels of one prompt, made once and passed by reference; what they look like is the family's affair."""

    images: Tensor  # patches [P, D] of all images, or tiles [I, 3, H, W]; no rows without images
    image_grid: Tensor  # [I, 3] long: patches (time, height, width) of an image, or (1, height, width) of a tile
    videos: Tensor  # the same for videos
    video_grid: Tensor  # [V, 3] long

    @classmethod
    def none(cls) -> Features:
        """No media."""
        return cls(
            images=torch.zeros(0, 0),
            image_grid=torch.zeros(0, 3, dtype=torch.long),
            videos=torch.zeros(0, 0),
            video_grid=torch.zeros(0, 3, dtype=torch.long),
        )

    @classmethod
    def joined(cls, parts: Sequence[Features]) -> Features:
        """The media of several texts that follow one another."""
        names = [field.name for field in dataclasses.fields(cls)]
        columns = {name: [getattr(part, name) for part in parts if len(getattr(part, name))] for name in names}
        nothing = cls.none()
        return cls(**{name: torch.cat(some) if some else getattr(nothing, name) for name, some in columns.items()})

    @property
    def patches(self) -> int:
        """Rows that the vision tower sees."""
        return len(self.images) + len(self.videos)


@dataclass(kw_only=True)
class Encoded(Batch):
    """Prompts as the network reads them. Lists, because their lengths differ."""

    ids: list[Tensor]  # [L] long, placeholders repeated once per vision token
    positions: list[Tensor]  # [A, L] long: time, height and width, or A = 1 for models that count along the text
    features: list[Features]

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each prompt."""
        return [len(ids) for ids in self.ids]

    @cached_property
    def next_position(self) -> list[int]:
        """Position of the first token after each prompt: one more than the largest in it."""
        return [int(positions.max()) + 1 for positions in self.positions]


def follow(encoded: Encoded, response: Tensor, turn: Encoded) -> Encoded:
    """A conversation that goes on: one prompt, the response as it was sampled, and what comes after it.

    Args:
        encoded: one prompt.
        response: [T] long.
        turn: what the environment says next, its positions counted from 0.
    """
    start = encoded.next_position[0]
    first = encoded.positions[0]
    own = (start + torch.arange(len(response))).expand(len(first), -1)
    return Encoded(
        ids=[torch.cat([encoded.ids[0], response, turn.ids[0]])],
        positions=[torch.cat([first, own, turn.positions[0] + start + len(response)], 1)],
        features=[Features.joined([encoded.features[0], turn.features[0]])],
    )


@dataclass(kw_only=True)
class Lengths(Batch):
    """How long prompts and responses are, in tokens: what is told of responses where they are not at hand."""

    prompt: Tensor  # [B] long
    response: Tensor  # [B] long
    finished: Tensor  # [B] bool: the response ended by itself


@dataclass(kw_only=True)
class Completion(Batch):
    """Responses, token for token as they were sampled.

    A response of several turns also holds what the environment answered, media included: those tokens are not masked
    in, and their log-prob is 0.
    """

    prompts: Gathered[Encoded]  # one row per group
    ids: Tensor  # [B, T] long, 0 beyond the length
    mask: Tensor  # [B, T] bool: tokens that the policy chose
    logprob: Tensor  # [B, T] float32 under the weights that sampled, at the sampling temperature; 0 where masked out
    positions: Tensor  # [B, A, T] long
    length: Tensor  # [B] long: tokens of the response, whoever wrote them
    finished: Tensor  # [B] bool: it ended by itself; false means cut at the limit
    features: list[Features]  # [B] media inside the response

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Join batches along the sample axis; shorter ones are padded."""
        longest = max(part.ids.shape[1] for part in parts)
        return super().cat([part.padded(longest) for part in parts])

    def to(self, device: torch.device | str) -> Self:
        """These very responses: forward passes are laid out on the CPU, and losses send on what they compare with."""
        return self

    @property
    def lengths(self) -> Lengths:
        """What they are told by where they are not at hand."""
        prompt = torch.tensor(self.prompts.table.lengths, dtype=torch.long)[self.prompts.index]
        return Lengths(prompt=prompt, response=self.length, finished=self.finished)

    def padded(self, width: int) -> Self:
        """The same responses in [B, width] tensors; what is cut off must be padding."""
        grow = width - self.ids.shape[1]
        if grow == 0:
            return self
        assert not len(self.length) or width >= int(self.length.max()), "a response would be cut"
        names = ("ids", "mask", "logprob", "positions")
        wider: Any = {name: F.pad(getattr(self, name), (0, grow)) for name in names}
        return dataclasses.replace(self, **wider)

    def trimmed(self) -> Self:
        """The same responses without columns that are padding in every row."""
        return self.padded(int(self.length.max()) if len(self) else 0)


@dataclass(kw_only=True)
class Together(Batch):
    """Responses to one prompt that stay together, M to a row: one by itself, or a chosen and a rejected one."""

    trace: Completion  # [B * M], those of a row next to each other
    members: int = shared()  # M

    def __len__(self) -> int:
        return len(self.trace) // self.members

    def select(self, index: Tensor | Sequence[int] | slice) -> Self:
        if isinstance(index, slice):
            index = range(len(self))[index]
        rows = torch.as_tensor(index if isinstance(index, Tensor) else list(index), dtype=torch.long)
        places = rows[:, None] * self.members + torch.arange(self.members, device=rows.device)
        return dataclasses.replace(self, trace=self.trace.select(places.flatten()))
