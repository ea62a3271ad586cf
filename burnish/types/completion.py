"""What a language model reads and writes: tokenized prompts with their media, and sampled responses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.types.batch import Batch, Gathered, as_positions, shared


@dataclass(frozen=True, eq=False)
class Features:
    """Processed media of one prompt, computed once and passed by reference, named as its processor names them."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)  # along which further media follow; 0 where not named
    kinds: dict[str, Tensor] = field(default_factory=dict)  # [L] long each: kinds of tokens, for models that ask
    sizes: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)  # of images, videos, sounds (``Shown``)
    # of a response: those of each conversation that is written anew in it, by the token that it begins with
    anew: dict[int, Features] = field(default_factory=dict)

    @classmethod
    def joined(cls, several: Sequence[Features], lengths: Sequence[int] = ()) -> Features:
        """The media of consecutive texts, in order; ``lengths`` of the texts in tokens place the kinds of tokens."""
        axes = {name: axis for one in several for name, axis in one.axes.items()}
        names = dict.fromkeys(name for one in several for name in one.tensors)
        tensors = {
            name: pad_and_cat([one.tensors[name] for one in several if name in one.tensors], axes.get(name, 0))
            for name in names
        }
        kinds = {}
        for name in dict.fromkeys(name for one in several for name in one.kinds) if lengths else ():
            parts = zip(several, lengths, strict=True)
            kinds[name] = torch.cat([one.kinds.get(name, torch.zeros(n, dtype=torch.long)) for one, n in parts])
        sizes: dict[str, list[tuple[float, ...]]] = {}
        for kind, more in (item for one in several for item in one.sizes.items()):
            sizes[kind] = sizes.get(kind, []) + more
        return cls(tensors, axes, kinds, sizes, {at: own for one in several for at, own in one.anew.items()})

    def in_precision(self, dtype: torch.dtype) -> Features:
        """The same with pixels in another precision, such as that of the forward passes that read them."""
        pixels = {name: one.to(dtype) for name, one in self.tensors.items() if one.is_floating_point()}
        return dataclasses.replace(self, tensors={**self.tensors, **pixels})


def pad_and_cat(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors joined along an axis; other axes are padded at their ends with 0 to the longest."""
    if len(tensors) == 1:
        return tensors[0]
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]

    def padded(tensor: Tensor) -> Tensor:
        missing = [0 if n == axis else most - tensor.shape[n] for n, most in enumerate(shape)]
        return F.pad(tensor, [size for more in reversed(missing) for size in (0, more)]) if any(missing) else tensor

    return torch.cat([padded(tensor) for tensor in tensors], axis)


@dataclass(kw_only=True)
class Encoded(Batch):
    """Tokenized prompts. Lists, because their lengths differ."""

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


def append_turn(encoded: Encoded, response: Tensor, turn: Encoded) -> Encoded:
    """A conversation as the next prompt: one prompt, the response as it was sampled, and the turn after it.

    Args:
        encoded: one prompt.
        response: [T] long.
        turn: what the environment says next, with positions that count from 0.
    """
    start = encoded.next_position[0]
    first = encoded.positions[0]
    own = (start + torch.arange(len(response))).expand(len(first), -1)
    return Encoded(
        ids=[torch.cat([encoded.ids[0], response, turn.ids[0]])],
        positions=[torch.cat([first, own, turn.positions[0] + start + len(response)], 1)],
        features=[
            Features.joined(
                [encoded.features[0], Features(), turn.features[0]],
                [encoded.lengths[0], len(response), turn.lengths[0]],
            )
        ],
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialResponse:
    """What there is of a response that goes on with a later batch, under newer weights; of one that begins, nothing."""

    update: int  # that it was begun for, which seeds its draws
    ids: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # [N]
    logprob: Tensor = field(default_factory=lambda: torch.zeros(0))  # [N], each under the weights that wrote the token
    version: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # [N] updates behind those
    finished: bool = False  # it ended by itself, and waits for others of its group


@dataclass(kw_only=True)
class Lengths(Batch):
    """Lengths of prompts and responses in tokens: all that the driver knows of responses that workers hold."""

    prompt: Tensor  # [B] long
    response: Tensor  # [B] long
    finished: Tensor  # [B] bool: the response ended by itself


UNROUTED = torch.zeros(0, 0, 0, dtype=torch.int16)


@dataclass(kw_only=True)
class Completion(Batch):
    """Responses, token for token as they were sampled.

    A response of several turns also holds what the environment said, media included: the mask is false for those
    tokens, and their log-prob is 0.
    """

    prompts: Gathered[Encoded]  # one row per group
    ids: Tensor  # [B, T] long, 0 beyond the length
    mask: Tensor  # [B, T] bool: tokens that the policy chose
    logprob: Tensor  # [B, T] float32 under the weights that sampled, at the sampling temperature; 0 where masked out
    positions: Tensor  # [B, A, T] long
    length: Tensor  # [B] long: tokens of the response, those of the environment included
    finished: Tensor  # [B] bool: it ended by itself; false means truncated at the limit
    features: list[Features]  # [B] media inside the response
    # [B] experts [P + T - 1, layers, k] int16 of all tokens that were read; [0, 0, 0] where nobody recorded them
    routed_experts: list[Tensor]

    @classmethod
    def of_text(
        cls,
        prompts: Gathered[Encoded],
        ids: Tensor,
        length: Tensor,
        *,
        axes: int,
        logprob: Tensor | None = None,
        finished: Tensor | None = None,
        routed_experts: list[Tensor] | None = None,
    ) -> Self:
        """Responses without media, all of whose tokens the policy chose: positions follow those of the prompts.

        Args:
            prompts: one per response.
            ids: [B, T] long, 0 beyond the length.
            length: [B] long.
            axes: numbers per position (``LanguageModel.axes``).
            logprob: [B, T] float32; None for responses that were not sampled.
            finished: [B] bool; None if all are.
            routed_experts: [B] that their tokens were sent to; None if nobody recorded any.
        """
        mask = torch.arange(ids.shape[1]) < length[:, None]
        first = torch.tensor(prompts.table.next_position, dtype=torch.long)[prompts.index]
        positions = (first[:, None] + torch.arange(ids.shape[1])) * mask
        return cls(
            prompts=prompts,
            ids=ids,
            mask=mask,
            logprob=torch.zeros(mask.shape) if logprob is None else logprob,
            positions=positions[:, None].expand(-1, axes, -1),
            length=length,
            finished=torch.ones(len(length), dtype=torch.bool) if finished is None else finished,
            features=[Features()] * len(length),
            routed_experts=[UNROUTED] * len(length) if routed_experts is None else routed_experts,
        )

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """Concatenate batches along the sample axis; shorter ones are padded."""
        longest = max(batch.ids.shape[1] for batch in batches)
        return super().cat([batch.padded(longest) for batch in batches])

    def costs(self) -> list[int]:
        """Tokens of each response with its prompt."""
        lengths = self.lengths
        return [int(length) for length in (lengths.prompt + lengths.response).tolist()]

    def to(self, device: torch.device | str) -> Self:
        """Unchanged: forward passes are laid out on the CPU, and losses move what they need to the device."""
        return self

    @property
    def lengths(self) -> Lengths:
        """In tokens."""
        prompt = torch.tensor(self.prompts.table.lengths, dtype=torch.long)[self.prompts.index]
        return Lengths(prompt=prompt, response=self.length, finished=self.finished)

    def padded(self, width: int) -> Self:
        """The same responses in [B, width] tensors; what is cut off must be padding."""
        names, grow = ("ids", "mask", "logprob", "positions"), (0, width - self.ids.shape[1])
        wider: Any = {name: F.pad(getattr(self, name), grow) for name in names}
        return dataclasses.replace(self, **wider)


@dataclass(kw_only=True)
class ResponseRows(Batch):
    """Responses that no micro-batch separates, M to a row: a single one, or a chosen and a rejected one."""

    trace: Completion  # [B * M], the M of a row adjacent
    members: int = shared()  # M

    def __len__(self) -> int:
        return len(self.trace) // self.members

    def costs(self) -> list[int]:
        """Tokens of all members of each row."""
        each = self.trace.costs()
        return [sum(each[row * self.members : (row + 1) * self.members]) for row in range(len(self))]

    def select(self, index: Tensor | Sequence[int] | slice) -> Self:
        rows = as_positions(index, len(self))
        members = rows[:, None] * self.members + torch.arange(self.members, device=rows.device)
        return dataclasses.replace(self, trace=self.trace.select(members.flatten()))
