"""What rewards get of responses, as soon as they end, and what is recorded of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from burnish.rewards.base import inputs_asked
from burnish.rewards.scoring import AnyScorer, Collector
from burnish.rewards.text.base import Response
from burnish.tasks.evaluate import TOKENS, SaidTokens
from burnish.tasks.job import collector
from burnish.tasks.language.engine import ResponseEngine, ResponseJob
from burnish.types.completion import Completion


def inputs_of(trace: Completion, asked: Collection[str]) -> dict[str, list[Any]]:
    """By name, of each response."""
    if "response_ids" not in asked:
        return {}
    return {"response_ids": [trace.ids[row, chosen_last(trace, row)].tolist() for row in range(len(trace))]}


def chosen_last(trace: Completion, row: int) -> Tensor:
    """Places of the tokens that the policy chose in a response; of a dialogue in its last one."""
    chosen = trace.mask[row].nonzero().flatten()
    apart = (chosen.diff() > 1).nonzero().flatten()
    return chosen[int(apart[-1]) + 1 :] if len(apart) else chosen


def said_tokens(
    trace: Completion, rows: Sequence[int], engine: ResponseEngine, temperature: float
) -> dict[int, SaidTokens]:
    """What is recorded of the first tokens that the policy chose in some responses, by row.

    Log-probs and entropies are those at the sampling ``temperature``; the latter take a forward pass of their own.
    """
    if not rows:
        return {}
    some, decode = trace.select(rows), engine.roles.model.decode
    entropy = engine.entropy(some, temperature)
    found: dict[int, SaidTokens] = {}
    for own, row in enumerate(rows):
        chosen = some.mask[own].nonzero().flatten()[:TOKENS]
        texts = [decode([token]) for token in some.ids[own, chosen].tolist()]
        logprobs = some.logprob[own, chosen].tolist()
        entropies = [math.nan] * len(texts) if entropy is None else entropy[own, chosen].tolist()
        found[row] = [
            (text, round(logprob, 4), round(spread, 4))
            for text, logprob, spread in zip(texts, logprobs, entropies, strict=True)
        ]
    return found


def token_columns(tokens: SaidTokens) -> dict[str, Any]:
    """Tokens as columns of a record, each of one type."""
    found: dict[str, Any] = {
        "token_texts": [text for text, _, _ in tokens], "token_logprobs": [value for _, value, _ in tokens]
    }  # fmt: skip
    entropies = [value for _, _, value in tokens]
    return found if any(map(math.isnan, entropies)) else found | {"token_entropies": entropies}


def response_columns(response: Response, tokens: int) -> dict[str, Any]:
    """A response as columns of a record."""
    return {
        "response": response.full_text, "finished": response.finished, "tokens": tokens,
        "turns": 1 if response.dialogue is None else len(response.dialogue.responses),
    }  # fmt: skip


def sampled_for(
    job: ResponseJob,
    engine: ResponseEngine,
    scorer: AnyScorer,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[Completion, list[Response], Collector]:
    """Responses, which are submitted as they end, while others are still written."""
    scoring, asked = collector(job, scorer, one_by_one=True, tell=tell), inputs_asked(scorer.rewards)
    # what some rewards ask for is only known when all have ended
    trace, responses = engine.sample(job if asked else replace(job, finished=scoring.add))
    scoring.add(range(len(responses)), responses, inputs_of(trace, asked))
    return trace, responses, scoring
