"""Conversations as the arguments of a class's own forward: padded, with media joined as its processor joins them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.language.model.base import Audio, Shown, Video
from burnish.types.completion import Completion, Encoded, Features, pad_and_cat

TEXT = ("input_ids", "attention_mask", "labels", "position_ids")  # what a processor returns beside media and kinds
KINDS = "token_type_ids"  # how the names of kinds of tokens end
Inputs = dict[str, Any]
SIZES = ((60, 44), (44, 76), (96, 52))  # width and height in pixels: no two alike
FRAMES = (4, 8, 6)
SECONDS = (1.5, 1.0, 2.5)

Process = Callable[[list[str], Sequence[Shown]], Inputs]


@dataclass(frozen=True)
class Conversation:
    """A prompt, or a prompt with its response."""

    ids: Tensor  # [L] long
    features: Features

    def followed_by(self, tokens: Tensor, fill: dict[str, int]) -> Conversation:
        """The same with further tokens [N] of the policy; ``fill`` are their kinds."""
        kinds = {
            name: torch.cat([kind, torch.full_like(tokens, fill.get(name, 0))])
            for name, kind in self.features.kinds.items()
        }
        return Conversation(torch.cat([self.ids, tokens]), replace(self.features, kinds=kinds))

    @classmethod
    def of(cls, completion: Completion, fill: dict[str, int]) -> list[Conversation]:
        """Each prompt with its response; ``fill`` are the kinds of the policy's tokens."""
        prompts, found = completion.prompts, []
        for row, length in enumerate(completion.length.tolist()):
            prompt, own = int(prompts.index[row]), completion.features[row]
            opening = prompts.table.features[prompt]
            kinds = {
                name: torch.cat([kind, own.kinds.get(name, torch.full((length,), fill.get(name, 0)))])
                for name, kind in opening.kinds.items()
            }
            media = Features.joined([opening, own])
            ids = torch.cat([prompts.table.ids[prompt], completion.ids[row, :length].cpu()])
            found.append(cls(ids, Features(media.tensors, media.axes, kinds)))
        return found

    @classmethod
    def prompts(cls, encoded: Encoded) -> list[Conversation]:
        """Prompts alone."""
        return [cls(ids, features) for ids, features in zip(encoded.ids, encoded.features, strict=True)]


@dataclass(frozen=True)
class Collation:
    """How media of several conversations become one tensor, as learned from the processor."""

    axes: dict[str, int] = field(default_factory=dict)  # along which conversations follow one another
    rows: frozenset[str] = frozenset()  # tensors that have one entry per conversation, also for those without media
    mixes: bool = True  # conversations with other kinds of media can be in one forward
    # tensors [1, L, ...] with an entry for each token of a prompt, as where text attends to pictures in layers of its
    # own (Mllama): responses go on with the last entry, as they do in the class's own decoding
    per_token: frozenset[str] = frozenset()
    within: dict[str, int] = field(default_factory=dict)  # axes along which further media of the same prompt follow
    # kinds of media that it reads, and whether media of later turns can follow those before, as all of them are at once
    appends: dict[str, bool] = field(default_factory=dict)

    def groups(self, conversations: Sequence[Conversation], *, together: bool) -> list[list[int]]:
        """Which conversations are in one forward: those whose media can be joined, or each alone."""
        groups: dict[Any, list[int]] = {}
        for number, conversation in enumerate(conversations):
            names = frozenset(conversation.features.tensors)
            joined = together and names <= self.axes.keys()
            key = number if not joined else "all" if self.mixes else names
            groups.setdefault(key, []).append(number)
        return list(groups.values())

    def padded(self, conversations: Sequence[Conversation], pad: int, *, side: Literal["left", "right"]) -> Inputs:
        """Arguments of a forward, without positions."""
        longest = max(len(one.ids) for one in conversations)

        def row(tokens: Tensor, value: int) -> Tensor:
            missing = longest - len(tokens)
            return F.pad(tokens, (missing, 0) if side == "left" else (0, missing), value=value)

        inputs: Inputs = {
            "input_ids": torch.stack([row(one.ids, pad) for one in conversations]),
            "attention_mask": torch.stack([row(torch.ones_like(one.ids), 0) for one in conversations]),
        }
        for name in dict.fromkeys(name for one in conversations for name in one.features.kinds):
            nothing = [one.features.kinds.get(name, torch.zeros_like(one.ids)) for one in conversations]
            inputs[name] = torch.stack([row(kinds, 0) for kinds in nothing])
        return inputs | {
            name: self._as_long(value, longest) if name in self.per_token else value
            for name, value in self.media([one.features for one in conversations]).items()
        }

    @staticmethod
    def _as_long(value: Tensor, length: int) -> Tensor:
        """Entries [1, L, ...] of a conversation of that length, which is alone in its forward."""
        missing = length - value.shape[1]
        return torch.cat([value, value[:, -1:].expand(-1, missing, *value.shape[2:])], 1) if missing else value

    def media(self, features: Sequence[Features]) -> Inputs:
        """The media of several conversations as arguments of a forward."""
        inputs: Inputs = {}
        for name in dict.fromkeys(name for one in features for name in one.tensors):
            axis = self.axes.get(name, 0)
            example = next(one.tensors[name] for one in features if name in one.tensors)
            blank = example.new_zeros([int(n == axis) for n in range(example.ndim)])
            tensors = [one.tensors.get(name, blank if name in self.rows else None) for one in features]
            inputs[name] = pad_and_cat([tensor for tensor in tensors if tensor is not None], axis)
        return inputs


def learn(ask: Callable[[Sequence[str]], str], process: Process, audio_rate: int | None) -> Collation:
    """How the tensors of all media that a processor reads are joined, from a few of its own batches.

    Args:
        ask: the text of a prompt with media of these kinds.
        process: what the processor returns for texts and their media.
        audio_rate: samples per second of sounds; None if the model hears none.
    """
    found = Collation()
    for kind in ("image", "video", "audio") if audio_rate is not None else ("image", "video"):
        media = samples(kind, audio_rate or 0)

        def made(*prompts: Sequence[int], kind: str = kind, media: list[Any] = media) -> Inputs:
            """Of prompts with some of the media each, by their numbers; nothing where the processor refuses them."""
            shown = [Shown(**{f"{kind}s": [media[number] for number in prompt]}) for prompt in prompts]  # type: ignore[arg-type]
            try:
                return process([ask([kind] * len(prompt)) for prompt in prompts], shown)
            except Exception:
                return {}

        first, second, more = made([0]), made([1]), made([1, 2])
        one, single, two, three = map(media_of, (first, second, more, made([0, 1, 2])))
        if not one:  # it refuses them, or leaves them out without a word (videos of Gemma 3)
            continue
        together, mixed = media_of(made([0], [1, 2] if two else [1])), media_of(made([], [0]))
        aligned = _per_token(first) & _per_token(more or second)
        # one without an axis keeps its conversation alone
        axes = {
            name: _axis(one[name], (two or single)[name], together.get(name)) for name in one if name not in aligned
        }
        known = {name: axis for name, axis in axes.items() if axis is not None}
        sizes = {
            name: (one[name].shape[axis], mixed[name].shape[axis]) for name, axis in known.items() if name in mixed
        }
        rows = {name for name, (alone, beside) in sizes.items() if beside > alone}
        whole = {name: _axis(one[name], two[name], three[name]) for name in one.keys() & two.keys() & three.keys()}
        within = {name: axis for name, axis in whole.items() if axis is not None}
        appends = bool(three) and all(
            name in within and torch.equal(pad_and_cat([one[name], two[name]], within[name]), expected)
            for name, expected in three.items()
        )
        found = Collation(
            found.axes | known, found.rows | rows, per_token=found.per_token | aligned, within=found.within | within,
            appends=found.appends | {kind: appends},
        )  # fmt: skip
    return found


def media_of(inputs: Inputs) -> dict[str, Tensor]:
    """The media among what a processor returns."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor) and value.ndim}
    return {name: value for name, value in tensors.items() if name not in TEXT and not name.endswith(KINDS)}


def _per_token(inputs: Inputs) -> set[str]:
    """Names of media whose second axis is as long as the text."""
    tokens = inputs["input_ids"].shape[1]
    return {name for name, value in media_of(inputs).items() if value.ndim > 2 and value.shape[1] == tokens}


def kinds_of(inputs: Inputs) -> dict[str, Tensor]:
    """The kinds [L] of the tokens of one prompt among what a processor returns."""
    return {name: value[0].long() for name, value in inputs.items() if name.endswith(KINDS)}


def _axis(first: Tensor, second: Tensor, both: Tensor | None) -> int | None:
    """The axis along which two tensors were joined; None if it can't be told."""
    if both is None or not first.ndim == second.ndim == both.ndim:
        return None
    for axis in range(both.ndim):
        rest = [n for n in range(both.ndim) if n != axis]
        if both.shape[axis] == first.shape[axis] + second.shape[axis] and all(
            both.shape[n] == max(first.shape[n], second.shape[n]) for n in rest
        ):
            return axis
    return None


def loses(process: Process, ask: Callable[[Sequence[str]], str]) -> bool:
    """Whether a processor returns less of a picture and a video in one prompt than of both apart (SmolVLM)."""
    picture, video = Shown(images=samples("image")[:1]), Shown(videos=samples("video")[:1])
    apart = [media_of(process([ask([kind])], [shown])) for kind, shown in (("image", picture), ("video", video))]
    try:
        both = media_of(process([ask(["image", "video"])], [Shown(picture.images, video.videos)]))
    except Exception:  # so it says itself
        return False
    return sum(one.numel() for one in both.values()) < sum(one.numel() for each in apart for one in each.values())


def samples(kind: str, rate: int = 0) -> list[Any]:
    """Three media of a kind, of unequal sizes; sounds at a rate."""
    from PIL import Image

    draw = np.random.default_rng(0)
    if kind == "image":
        return [Image.fromarray(draw.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in SIZES]
    if kind == "audio":
        return [Audio(draw.normal(0, 0.1, round(s * rate)).astype(np.float32), rate) for s in SECONDS]
    return [Video(draw.integers(0, 256, (count, 48, 64, 3), dtype=np.uint8), 2.0) for count in FRAMES]
