"""What rewards get of responses: their text as soon as they end, and what some ask for besides."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from torch import Tensor

from burnish.rewards.batching import Collector
from burnish.rewards.given import inputs_asked
from burnish.rewards.scoring import AnyScorer
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


def said_tokens(trace: Completion, row: int, engine: ResponseEngine) -> SaidTokens:
    """Text and log-prob of the first tokens that the policy chose in a response, at the sampling temperature."""
    chosen = trace.mask[row].nonzero().flatten()[:TOKENS]
    decode = engine.roles.model.decode
    texts = [decode([token]) for token in trace.ids[row, chosen].tolist()]
    return list(zip(texts, [round(value, 4) for value in trace.logprob[row, chosen].tolist()], strict=True))


def token_columns(tokens: SaidTokens) -> dict[str, Any]:
    """Tokens as two columns of a record, each of one type."""
    return {"token_texts": [text for text, _ in tokens], "token_logprobs": [value for _, value in tokens]}


def response_columns(response: Response, tokens: int) -> dict[str, Any]:
    """A response as columns of a record."""
    return {
        "response": response.full_text, "finished": response.finished, "tokens": tokens,
        "turns": 1 if response.dialogue is None else len(response.dialogue.responses),
    }  # fmt: skip


def sampled_for(
    job: ResponseJob, engine: ResponseEngine, scorer: AnyScorer
) -> tuple[Completion, list[Response], Collector]:
    """Responses, which are submitted as they end, while others are still written."""
    scoring, asked = collector(job, scorer, one_by_one=True), inputs_asked(scorer.rewards)
    # what some rewards ask for is only known when all have ended
    trace, responses = engine.sample(job if asked else replace(job, finished=scoring.add))
    scoring.add(range(len(responses)), responses, inputs_of(trace, asked))
    return trace, responses, scoring
