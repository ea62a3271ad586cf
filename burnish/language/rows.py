"""How responses lie in a forward pass: padded, packed, or behind a prompt that they share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from burnish.language.attention import Plan, Segment
from burnish.types.completion import Completion, Features

Layout = Literal["padded", "packed", "shared"]


@dataclass(frozen=True)
class Table:
    """Every token of a micro-batch once: the prompts in use one after the other, then the responses."""

    ids: Tensor  # [M] long
    slots: Tensor  # [M] bool: tokens that stand for pixels
    positions: Tensor  # [A, M] long
    features: list[Features]  # in the order of the slots
    chosen: Tensor  # [R] bool: response tokens that the policy chose, in the order of the table
    prompt: list[range]  # [P] where each prompt lies
    response: list[range]  # [B] where each response lies
    owner: list[int]  # [B] prompt of each response

    @classmethod
    def of(cls, completion: Completion, placeholders: Tensor) -> Table:
        """Table of a batch; of the placeholder ids only those that nobody chose to write are slots for pixels."""
        used, owner = completion.prompts.index.unique(return_inverse=True)
        prompts = completion.prompts.table.select(used)
        lengths = completion.length.cpu()
        there = torch.arange(completion.ids.shape[1]) < lengths[:, None]
        chosen = completion.mask.cpu()[there]
        positions = completion.positions.cpu().transpose(1, 2)[there].T
        ids = torch.cat([*prompts.ids, completion.ids.cpu()[there]])
        free = torch.cat([torch.ones(sum(prompts.lengths), dtype=torch.bool), ~chosen])
        places = list(_ranges([*prompts.lengths, *lengths.tolist()]))
        return cls(
            ids=ids,
            slots=torch.isin(ids, placeholders) & free,
            positions=torch.cat([*prompts.positions, positions], 1),
            features=[f for f in [*prompts.features, *completion.features] if f.patches],
            chosen=chosen,
            prompt=places[: len(used)],
            response=places[len(used) :],
            owner=owner.tolist(),
        )


def _ranges(lengths: list[int]) -> Iterator[range]:
    start = 0
    for length in lengths:
        yield range(start, start + length)
        start += length


@dataclass(frozen=True)
class Rows:
    """A line of tokens to be run through the network, and where in it each response token was predicted."""

    source: Tensor  # [N] long, into the table
    segments: list[Segment]
    predicts: Tensor  # [R] long: place in the line of the state that each response token was chosen from

    def plan(self, device: torch.device) -> Plan:
        return Plan.of(self.segments, device=device)


def lay_out(table: Table, layout: Layout) -> Rows:
    """Place a table's tokens. The last token of a response is never read by anyone, so it is left out."""
    if layout == "shared":
        return _shared(table)
    source: list[int] = []
    predicts: list[int] = []
    segments = []
    rows = [(table.prompt[owner], answer) for owner, answer in zip(table.owner, table.response, strict=True)]
    longest = max(len(prompt) + max(len(answer) - 1, 0) for prompt, answer in rows)
    for prompt, answer in rows:
        start, before = len(source), len(source) + len(prompt) - 1
        if layout == "packed" and not answer:
            continue
        predicts += range(before, before + len(answer))
        source += prompt
        source += answer[:-1]
        if layout == "padded":
            source += [prompt[0]] * (start + longest - len(source))
        segments.append(Segment(start, len(source) - start))
    return Rows(torch.tensor(source, dtype=torch.long), segments, torch.tensor(predicts, dtype=torch.long))


def _shared(table: Table) -> Rows:
    source: list[int] = []
    predicts: list[int] = []
    segments = []
    for prompt in table.prompt:
        segments.append(Segment(len(source), len(prompt)))
        source += prompt
    ends = [segment.start + segment.length - 1 for segment in segments]
    for owner, answer in zip(table.owner, table.response, strict=True):
        start, count = len(source), max(len(answer) - 1, 0)
        if answer:
            predicts += [ends[owner], *range(start, start + count)]
        if count:
            segments.append(Segment(start, count, prefix=owner))
            source += answer[:-1]
    return Rows(torch.tensor(source, dtype=torch.long), segments, torch.tensor(predicts, dtype=torch.long))
