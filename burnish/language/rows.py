"""How responses are laid out in a forward pass: padded, packed, or sharing their prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from burnish.language.attention import Plan
from burnish.language.segments import Segment
from burnish.types.completion import Completion, Features

Layout = Literal["padded", "packed", "shared"]


@dataclass(frozen=True)
class Table:
    """Every token of a micro-batch once: the prompts in use, then the responses."""

    ids: Tensor  # [M] long
    slots: Tensor  # [M] bool: vision tokens
    positions: Tensor  # [A, M] long
    features: list[Features]  # in the order of the slots
    chosen: Tensor  # [R] bool: response tokens that the policy chose, in the order of the table
    prompt: list[range]  # [P] the rows of each prompt
    response: list[range]  # [B] the rows of each response
    owner: list[int]  # [B] prompt of each response

    @classmethod
    def of(cls, completion: Completion, placeholders: Tensor) -> Table:
        """Table of a batch; placeholder ids are slots for pixels, unless the policy chose them."""
        used, owner = completion.prompts.index.unique(return_inverse=True)
        prompts = completion.prompts.table.select(used)
        lengths = completion.length.cpu()
        real = torch.arange(completion.ids.shape[1]) < lengths[:, None]
        chosen = completion.mask.cpu()[real]
        positions = completion.positions.cpu().transpose(1, 2)[real].T
        ids = torch.cat([*prompts.ids, completion.ids.cpu()[real]])
        free = torch.cat([torch.ones(sum(prompts.lengths), dtype=torch.bool), ~chosen])
        ranges = list(_ranges([*prompts.lengths, *lengths.tolist()]))
        return cls(
            ids=ids,
            slots=torch.isin(ids, placeholders) & free,
            positions=torch.cat([*prompts.positions, positions], 1),
            features=[f for f in [*prompts.features, *completion.features] if f.size],
            chosen=chosen,
            prompt=ranges[: len(used)],
            response=ranges[len(used) :],
            owner=owner.tolist(),
        )


def _ranges(lengths: list[int]) -> Iterator[range]:
    start = 0
    for length in lengths:
        yield range(start, start + length)
        start += length


@dataclass(frozen=True)
class PackedSequence:
    """The tokens of a forward pass, and the state that predicts each response token."""

    source: Tensor  # [N] long, into the table
    segments: list[Segment]
    predicts: Tensor  # [R] long: index in the sequence of the state that predicts each response token

    def plan(self, device: torch.device) -> Plan:
        return Plan.of(self.segments, device=device)


def lay_out(table: Table, layout: Layout) -> PackedSequence:
    """The sequence of a table. The last token of a response predicts nothing, so it is left out."""
    if layout == "shared":
        return _shared(table)
    source: list[int] = []
    predicts: list[int] = []
    segments = []
    rows = [(table.prompt[owner], response) for owner, response in zip(table.owner, table.response, strict=True)]
    longest = max(len(prompt) + max(len(response) - 1, 0) for prompt, response in rows)
    for prompt, response in rows:
        start, last = len(source), len(source) + len(prompt) - 1
        if layout == "packed" and not response:
            continue
        predicts += range(last, last + len(response))
        source += prompt
        source += response[:-1]
        if layout == "padded":
            source += [prompt[0]] * (start + longest - len(source))
        segments.append(Segment(start, len(source) - start))
    return PackedSequence(torch.tensor(source, dtype=torch.long), segments, torch.tensor(predicts, dtype=torch.long))


def _shared(table: Table) -> PackedSequence:
    source: list[int] = []
    predicts: list[int] = []
    segments = []
    for prompt in table.prompt:
        segments.append(Segment(len(source), len(prompt)))
        source += prompt
    last = [segment.start + segment.length - 1 for segment in segments]
    for owner, response in zip(table.owner, table.response, strict=True):
        start, count = len(source), max(len(response) - 1, 0)
        if response:
            predicts += [last[owner], *range(start, start + count)]
        if count:
            segments.append(Segment(start, count, prefix=owner))
            source += response[:-1]
    return PackedSequence(torch.tensor(source, dtype=torch.long), segments, torch.tensor(predicts, dtype=torch.long))
