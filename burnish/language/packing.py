"""How responses are laid out in a forward pass: padded, packed, or sharing their prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.language.algorithms.base import token_budget_batches
from burnish.language.attention import Plan, Segment
from burnish.language.model.universal import LanguageModel
from burnish.types.batch import Gathered, to_device
from burnish.types.completion import Completion, Encoded, Features

Layout = Literal["padded", "packed", "shared"]


@dataclass(frozen=True)
class ResponseStates:
    """The states that predict the tokens of the policy, in order of rows."""

    hidden: Tensor  # [R, D] last hidden states
    mask: Tensor  # [B, T] bool: the R tokens
    index: Tensor  # [R] long: indices of the states in the sequences of the forward pass, one after the other
    logits: Tensor | None = None  # [R, V] where the head is more than a product

    def scatter(self, values: Tensor) -> Tensor:
        """Values [R] of the chosen tokens as [B, T] float32, 0 elsewhere."""
        out = torch.zeros(self.mask.shape, dtype=torch.float32, device=values.device)
        return out.masked_scatter(self.mask, values.float())


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


def lay_out(table: Table, layout: Layout) -> tuple[Tensor, list[Segment], Tensor]:
    """The sequence of a table. The last token of a response predicts nothing, so it is left out.

    Returns:
        Its tokens in the table [N] long, its segments, and the indices [R] long of the states in it that predict each
        response token.
    """
    source: list[int] = []
    predicts: list[int] = []
    segments = []
    shared = layout == "shared"
    for prompt in table.prompt if shared else ():
        segments.append(Segment(len(source), len(prompt)))
        source += prompt
    for owner, response in zip(table.owner, table.response, strict=True):
        if response:
            start, prompt = len(source), table.prompt[owner]
            first = start if shared else start + len(prompt)
            last = segments[owner].start + len(prompt) - 1 if shared else first - 1  # of the prompt
            predicts += [last, *range(first, first + len(response) - 1)]
            source += response[:-1] if shared else [*prompt, *response[:-1]]
            if len(source) > start:
                segments.append(Segment(start, len(source) - start, prefix=owner if shared else None))
    return torch.tensor(source, dtype=torch.long), segments, torch.tensor(predicts, dtype=torch.long)


def packed_states(
    model: LanguageModel, network: nn.Module, completion: Completion, *, layout: Layout | Literal["auto"]
) -> ResponseStates:
    """States of a micro-batch, in one forward pass of the decoder; see ``LanguageModel.response_states``."""
    table = Table.of(completion, model.placeholders)
    if not any(len(response) for response in table.response):
        chosen: Layout = "shared"  # it contains the prompts, so that there is a graph
    elif layout == "auto":
        costs = costs_of(completion, model)
        chosen = min(WITHOUT_PADDING, key=costs.__getitem__)
    else:
        chosen = layout
    source, segments, predicts = lay_out(table, chosen)
    device = next(network.parameters()).device
    ids, slots = to_device(table.ids, device), to_device(table.slots, device)
    decoder = model.text(network)
    embedded = model.forwards.embed(network, decoder, ids, slots, table.features)
    source = to_device(source, device)
    positions = to_device(table.positions, device)[:, source]
    states = model.forwards.packed(decoder, embedded, source, positions, Plan(segments, device=device))
    places = to_device(predicts[table.chosen], device)
    return ResponseStates(states.index_select(0, places), to_device(completion.mask, device), places)


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


WITHOUT_PADDING: tuple[Layout, ...] = ("packed", "shared")


def estimate(
    prompts: Sequence[int], responses: Sequence[int], owner: Sequence[int], size: LanguageModel
) -> dict[Layout, float]:
    """Multiplications of a forward pass under each layout.

    Args:
        prompts: [B] length of the prompt of each response.
        responses: [B] length of each response.
        owner: [B] index of that prompt; responses of one prompt can share it.
        size: of the network.
    """

    def cost(tokens: float, pairs: float) -> float:
        return float(tokens * size.parameters_per_token + 2 * pairs * size.attention_width)

    lengths = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    longest, distinct = max(lengths), dict(zip(owner, prompts, strict=True)).values()
    # causal attention skips half of the pairs; attention to a prefix doesn't
    return {
        "padded": cost(len(lengths) * longest, len(lengths) * longest**2 / 2),
        "packed": cost(sum(lengths), sum(length**2 for length in lengths) / 2) * 1.02,  # for gathering
        "shared": cost(
            sum(distinct) + sum(responses),
            sum(p**2 for p in distinct) / 2 + sum(r * (p + r) for p, r in zip(prompts, responses, strict=True)),
        )
        * 1.04,
    }


def costs_of(completion: Completion, size: LanguageModel) -> dict[Layout, float]:
    """The same of a forward pass over responses, whose last token is not read."""
    owner, lengths = completion.prompts.index.tolist(), completion.prompts.table.lengths
    responses = [max(length - 1, 0) for length in completion.length.tolist()]
    return estimate([lengths[prompt] for prompt in owner], responses, owner, size)


def multiplications(completion: Completion, size: LanguageModel, layout: Layout | Literal["auto"]) -> float:
    """Of a forward pass over responses."""
    costs = costs_of(unfolded(completion), size)
    return min(costs[one] for one in WITHOUT_PADDING) if layout == "auto" else costs[layout]


def cheapest_for_all(completion: Completion, size: LanguageModel, *, budget: int, mini_batch: int | None) -> Layout:
    """The layout with the fewest multiplications over all micro-batches of an update.

    Args:
        completion: all responses of the update.
        size: of the network.
        budget: tokens of a micro-batch.
        mini_batch: responses of an optimizer step, which come from all prompts of the update; None is all.
    """
    steps = max(-(-len(completion) // (mini_batch or max(len(completion), 1))), 1)
    totals = dict.fromkeys(WITHOUT_PADDING, 0.0)
    for step in range(steps):
        mini = completion.select(range(step, len(completion), steps))
        for rows in token_budget_batches(mini, budget):
            costs = costs_of(mini.select(rows), size)
            totals = {layout: total + costs[layout] for layout, total in totals.items()}
    return min(totals, key=totals.__getitem__)
