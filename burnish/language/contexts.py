"""Dialogues in which a turn answers a conversation of its own: how they are kept in one row, and run as several."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, Features


def placed(features: Features, place: int) -> Features:
    """Media and kinds of tokens of a conversation that begins at a token of a response, as media of that response."""
    tensors = {f"{place}/{name}": tensor for name, tensor in (*features.tensors.items(), *features.kinds.items())}
    return Features(tensors, {f"{place}/{name}": axis for name, axis in features.axes.items()})


def unfolded(completion: Completion) -> Completion:
    """A row per conversation: the tokens that somebody else begins anew, at position 0, are a prompt of their own.

    Args:
        completion: [B]; most have no such row, and are returned as they are.
    """
    within = torch.arange(completion.ids.shape[1]) < completion.length[:, None]
    begins = within & ~completion.mask & (completion.positions.amax(1) == 0)
    if not bool(begins.any()):
        return completion
    prompts = completion.prompts
    table, index, rows, spans = [prompts.table], [], [], []
    for row, length in enumerate(completion.length.tolist()):
        starts = [0, *begins[row].nonzero().flatten().tolist()]
        prompt = opening = int(prompts.index[row])
        for number, (start, end) in enumerate(zip(starts, [*starts[1:], length], strict=True)):
            first = start
            if number:
                first += int(completion.mask[row, start:end].int().argmax())  # what the policy says to it
                table.append(_prompt(completion, row, start, first, prompts.table.features[opening]))
                prompt = sum(len(one) for one in table) - 1
            index.append(prompt)
            rows.append(row)
            spans.append((first, end))
    width = max(end - first for first, end in spans)

    def cut(values: Tensor) -> Tensor:
        parts = [values[row, ..., first:end] for row, (first, end) in zip(rows, spans, strict=True)]
        return torch.stack([F.pad(part, (0, width - part.shape[-1])) for part in parts])

    names = ("ids", "mask", "logprob", "positions")
    return replace(
        completion,
        **{name: cut(getattr(completion, name)) for name in names},
        prompts=Gathered(table=Encoded.cat(table), index=torch.tensor(index)),
        length=torch.tensor([end - first for first, end in spans]),
        finished=completion.finished[rows],
        features=[_without_places(completion.features[row], end) if not first else Features.none()
                  for row, (first, end) in zip(rows, spans, strict=True)],
    )  # fmt: skip


def _prompt(completion: Completion, row: int, start: int, end: int, opening: Features) -> Encoded:
    """The conversation that begins at a token; where it has no media of its own, it shows those of the opening."""
    own, before = completion.features[row], f"{start}/"
    named = {name: name.removeprefix(before) for name in own.tensors if name.startswith(before)}
    kinds = {short: own.tensors[name] for name, short in named.items() if short in opening.kinds}
    tensors = {short: own.tensors[name] for name, short in named.items() if short not in kinds}
    axes = {name.removeprefix(before): axis for name, axis in own.axes.items() if name.startswith(before)}
    media = Features(tensors, axes, kinds) if tensors else Features(opening.tensors, opening.axes, kinds)
    return Encoded(
        ids=[completion.ids[row, start:end]], positions=[completion.positions[row, :, start:end]], features=[media]
    )


def _without_places(features: Features, length: int) -> Features:
    """The media and kinds of the first tokens, without those of conversations that begin after them."""
    tensors = {name: tensor for name, tensor in features.tensors.items() if "/" not in name}
    kinds = {name: kind[:length] for name, kind in features.kinds.items()}
    return replace(features, tensors=tensors, kinds=kinds)
