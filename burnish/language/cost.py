"""Estimated cost of forward passes: the cheapest layout, and micro-batches by number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from burnish.language.rows import Layout, Table
    from burnish.types.completion import Completion


class Size(Protocol):
    """The size of a network, for estimates."""

    parameters_per_token: int  # weights of the decoder that each token is multiplied with
    attention_width: int  # layers x heads x head width: multiplications per pair of tokens


def cheapest(table: Table, size: Size) -> Layout:
    """The layout whose forward pass has the fewest multiplications; the simplest on a tie."""
    prompts = [len(table.prompt[owner]) for owner in table.owner]
    responses = [max(len(response) - 1, 0) for response in table.response]
    costs = estimate(prompts, responses, table.owner, size)
    return min(costs, key=costs.__getitem__)


def estimate(prompts: Sequence[int], responses: Sequence[int], owner: Sequence[int], size: Size) -> dict[Layout, float]:
    """Multiplications of a forward pass under each layout.

    Args:
        prompts: [B] length of the prompt of each response.
        responses: [B] length of each response.
        owner: [B] index of that prompt; responses of one prompt can share it.
        size: of the network.
    """

    def cost(tokens: float, pairs: float) -> float:
        return tokens * size.parameters_per_token + 2 * pairs * size.attention_width

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


def cheapest_for_all(completion: Completion, size: Size, *, budget: int, mini_batch: int | None) -> Layout:
    """The layout with the fewest multiplications over all micro-batches of an update.

    Args:
        completion: all responses of the update.
        size: of the network.
        budget: tokens of a micro-batch.
        mini_batch: responses of an optimizer step, which come from all prompts of the update; None is all.
    """
    steps = max(-(-len(completion) // (mini_batch or max(len(completion), 1))), 1)
    totals: dict[Layout, float] = dict.fromkeys(("padded", "packed", "shared"), 0.0)
    for step in range(steps):
        mini = completion.select(range(step, len(completion), steps))
        lengths, index = mini.prompts.table.lengths, mini.prompts.index.tolist()
        responses = [max(length - 1, 0) for length in mini.length.tolist()]
        for rows in token_budget_batches(mini, budget):
            owner = [index[row] for row in rows]
            costs = estimate([lengths[one] for one in owner], [responses[row] for row in rows], owner, size)
            totals = {layout: total + costs[layout] for layout, total in totals.items()}
    return min(totals, key=totals.__getitem__)


def token_budget_batches(completion: Completion, budget: int, *, together: int = 1) -> Iterator[list[int]]:
    """Rows of micro-batches of at most ``budget`` tokens; responses of one prompt stay together if they fit.

    A prompt counts once per micro-batch. A response that exceeds the budget with its prompt gets a micro-batch of its
    own.

    Args:
        completion: [B * M] responses.
        budget: tokens, prompts included.
        together: M, the number of responses per row, all to one prompt.
    """
    lengths = completion.prompts.table.lengths
    index = completion.prompts.index[::together].tolist()
    responses = completion.length.view(-1, together).sum(1).tolist()
    groups: dict[int, list[int]] = {}
    for row, prompt in enumerate(index):
        groups.setdefault(prompt, []).append(row)
    batch: list[int] = []
    used = 0
    for prompt, rows in groups.items():
        total = lengths[prompt] + sum(responses[row] for row in rows)
        if batch and used + total > budget and total <= budget:
            yield batch
            batch, used = [], 0
        counted = False  # whether this micro-batch holds the prompt already
        for row in rows:
            needed = responses[row] + (0 if counted else lengths[prompt])
            if batch and used + needed > budget:
                yield batch
                batch, used, needed = [], 0, responses[row] + lengths[prompt]
            batch.append(row)
            used += needed
            counted = True
    if batch:
        yield batch
