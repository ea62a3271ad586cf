"""What a forward pass costs, before it is made: which layout is cheapest, and how responses share micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from burnish.language.rows import Layout, Table
    from burnish.types.completion import Completion


class Size(Protocol):
    """How big a network is, for estimates."""

    parameters_per_token: int  # weights that every token of the decoder is multiplied with
    attention_width: int  # layers x heads x width of a head: multiplied per pair of tokens


def cheapest(table: Table, size: Size) -> Layout:
    """The layout whose forward pass multiplies least; of equals the simplest."""
    prompts = [len(table.prompt[owner]) for owner in table.owner]
    answers = [max(len(answer) - 1, 0) for answer in table.response]
    return min(("padded", "packed", "shared"), key=lambda layout: estimate(prompts, answers, table.owner, size)[layout])


def estimate(prompts: Sequence[int], answers: Sequence[int], owner: Sequence[int], size: Size) -> dict[Layout, float]:
    """Multiplications of a forward pass under each layout.

    Args:
        prompts: [B] length of the prompt of each response.
        answers: [B] length of each response.
        owner: [B] which prompt that is; responses of one prompt can share it.
        size: of the network.
    """

    def cost(tokens: float, pairs: float) -> float:
        return tokens * size.parameters_per_token + 2 * pairs * size.attention_width

    lengths = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    longest, distinct = max(lengths), dict(zip(owner, prompts, strict=True)).values()
    # a causal mask lets half of the pairs be left out; a prefix needs a mask of its own, which does not
    return {
        "padded": cost(len(lengths) * longest, len(lengths) * longest**2 / 2),
        "packed": cost(sum(lengths), sum(length**2 for length in lengths) / 2) * 1.02,  # its gathering
        "shared": cost(
            sum(distinct) + sum(answers),
            sum(prompt**2 for prompt in distinct) / 2 + sum(a * (p + a) for p, a in zip(prompts, answers, strict=True)),
        )
        * 1.04,
    }


def cheapest_for_all(completion: Completion, size: Size, *, budget: int, mini_batch: int | None) -> Layout:
    """The one layout whose forward passes multiply least over the micro-batches of an update.

    Args:
        completion: all responses of the update.
        size: of the network.
        budget: tokens of a micro-batch.
        mini_batch: responses of an optimizer step, which come from everywhere in the update; None is all.
    """
    steps = max(-(-len(completion) // (mini_batch or max(len(completion), 1))), 1)
    totals: dict[Layout, float] = dict.fromkeys(("padded", "packed", "shared"), 0.0)
    for step in range(steps):
        mini = completion.select(range(step, len(completion), steps))
        lengths, index = mini.prompts.table.lengths, mini.prompts.index.tolist()
        answers = [max(length - 1, 0) for length in mini.length.tolist()]
        for rows in token_budget_batches(mini, budget):
            owner = [index[row] for row in rows]
            costs = estimate([lengths[one] for one in owner], [answers[row] for row in rows], owner, size)
            totals = {layout: total + costs[layout] for layout, total in totals.items()}
    return min(totals, key=totals.__getitem__)


def token_budget_batches(completion: Completion, budget: int, *, together: int = 1) -> Iterator[list[int]]:
    """Rows of micro-batches of at most ``budget`` tokens; responses of one prompt stay together where they fit.

    A prompt counts once per micro-batch. A response that is longer than the budget with its prompt gets a micro-batch
    of its own.

    Args:
        completion: [B * M] responses.
        budget: tokens, prompts included.
        together: M responses, to one prompt, that make a row.
    """
    lengths = completion.prompts.table.lengths
    index = completion.prompts.index[::together].tolist()
    answers = completion.length.view(-1, together).sum(1).tolist()
    groups: dict[int, list[int]] = {}
    for row, prompt in enumerate(index):
        groups.setdefault(prompt, []).append(row)
    part: list[int] = []
    used = 0
    for prompt, rows in groups.items():
        whole = lengths[prompt] + sum(answers[row] for row in rows)
        if part and used + whole > budget and whole <= budget:
            yield part
            part, used = [], 0
        owned = False
        for row in rows:
            needed = answers[row] + (0 if owned else lengths[prompt])
            if part and used + needed > budget:
                yield part
                part, used, needed = [], 0, answers[row] + lengths[prompt]
            part.append(row)
            used += needed
            owned = True
    if part:
        yield part
