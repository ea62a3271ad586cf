"""Responses that nobody sampled, as tokens: those of a data set, and those that a reward model reads."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from burnish.data.scored import ScoredGroup
from burnish.language.batches import response_stats
from burnish.language.model.universal import LanguageModel
from burnish.language.records import ResponseRecord
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, ResponseRows, read_at
from burnish.types.prompt import Prompt
from burnish.types.rollout import OfflineJudgements, OfflineResponses, ScoredResponses, Scores


class ResponseData:
    """Records, and how they become tensors."""

    def __init__(
        self,
        records: Sequence[ResponseRecord],
        model: LanguageModel,
        encode: Callable[[Sequence[Prompt]], Gathered[Encoded]],
    ) -> None:
        self.records, self.model, self.encode = list(records), model, encode

    def scored(
        self, groups: Sequence[ScoredGroup], weights: Mapping[str, float], *, limit: int, update: int, seed: int
    ) -> ScoredResponses:
        """Responses with scores, as if they had been sampled and scored; log-probs that nobody knows are NaN.

        Args:
            groups: some of ``self.records``, those of a prompt together.
            weights: data.scores.
            limit: longest response allowed, in tokens.
            update: policy update that trains on them.
            seed: of the run.
        """
        rows: list[ResponseRecord] = [member for group in groups for member in group.members]
        ids = [row.ids(self.model) for row in rows]
        trace = offline_completion(
            self.model, self.encode([row.prompt for row in rows]), ids, finished=[row.finished for row in rows],
            logprobs=[row.logprobs or (math.nan,) * len(own) for row, own in zip(rows, ids, strict=True)],
        )  # fmt: skip
        return ScoredResponses(
            prompts=[row.prompt for row in rows],
            group=torch.tensor([number for number, group in enumerate(groups) for _ in group.members]),
            sample=torch.tensor([group.first + i for group in groups for i in range(len(group.members))]),
            trace=trace,
            scores=Scores.given([row.scores for row in rows], weights),
            greedy=torch.full((len(rows),), torch.nan),
            turn_rewards=torch.zeros(len(rows), 0),
            limit=limit,
            stats=response_stats(trace, [row.responses[0] for row in rows]),
            update=update,
            version=update - 1,
            seed=seed,
        )

    def batch(self, records: Sequence[ResponseRecord], *, update: int, seed: int) -> Any:
        """Records as tensors, in order.

        Args:
            records: some of ``self.records``.
            update: policy update that trains on them.
            seed: of the run.
        """
        rows, members = [row for record in records for row in record.rows], len(records[0].responses)
        prompts, texts = self.encode([prompt for prompt, _ in rows]), [text for _, text in rows]
        run: Any = {"update": update, "version": update - 1, "seed": seed}
        if not records[0].target:
            trace = offline_completion(self.model, prompts, [self.model.response_ids(text) for text in texts])
            good = torch.tensor([record.good for record in records])
            return OfflineResponses(answers=ResponseRows(trace=trace, members=members), good=good, **run)
        ends = [record.ends or None for record in records for _ in record.rows]
        trace = judged_completion(self.model, prompts, texts, ends)
        steps = max(len(record.target) for record in records)
        nothing = (math.nan,) * len(records[0].margin)
        target = [[*record.target, *[nothing] * (steps - len(record.target))] for record in records]
        margin = torch.tensor([[record.margin] * steps for record in records])
        answers = ResponseRows(trace=trace, members=members)
        return OfflineJudgements(answers=answers, target=torch.tensor(target), margin=margin, **run)


def judged_completion(
    model: LanguageModel,
    prompts: Gathered[Encoded],
    responses: Sequence[str],
    ends: Sequence[Sequence[int] | None],
) -> Completion:
    """Responses for a reward model to read, as ``OfflineJudgements`` has them.

    Args:
        model: that reads and writes them.
        prompts: [B].
        responses: [B] texts.
        ends: [B] characters at which the steps of each end; None judges it as a whole, behind its last token.
    """
    ids = [model.response_ids(text) for text in responses]
    places = [
        [len(own)] if some is None else token_ends(model.decode, own, text, some)
        for own, text, some in zip(ids, responses, ends, strict=True)
    ]
    # the token that nothing reads: the state before it is the one behind the whole response
    trace = offline_completion(model, prompts, [[*own, own[-1]] for own in ids])
    return read_at(trace, places)


def token_ends(decode: Callable[[Sequence[int]], str], ids: Sequence[int], text: str, ends: Sequence[int]) -> list[int]:
    """Tokens, counted from 1, with which characters of a response are complete.

    Args:
        decode: of the tokenizer.
        ids: of the response.
        text: of the response.
        ends: numbers of characters, increasing.
    """
    before = max(decode(ids).find(text), 0)  # white space of the chat template
    return [bisect.bisect_left(range(len(ids)), before + end, key=lambda n: len(decode(ids[:n]))) for end in ends]


def offline_completion(
    model: LanguageModel,
    prompts: Gathered[Encoded],
    responses: Sequence[Sequence[int]],
    *,
    logprobs: Sequence[Sequence[float]] | None = None,
    finished: Sequence[bool] | None = None,
) -> Completion:
    """Responses as if the policy had chosen each of their tokens.

    Args:
        model: that reads and writes them.
        prompts: [B].
        responses: [B] ids of each.
        logprobs: [B] of these tokens under the policy that sampled them; None for responses that were not sampled.
        finished: [B] whether each ended by itself; None if all did.
    """
    ids = pad_sequence([torch.tensor(tokens, dtype=torch.long) for tokens in responses], batch_first=True)
    logprob = torch.zeros(ids.shape)
    for row, known in enumerate(logprobs or ()):
        logprob[row, : len(known)] = torch.tensor(known)
    return Completion.of_text(
        prompts, ids, torch.tensor([len(tokens) for tokens in responses]), axes=model.axes, logprob=logprob,
        finished=None if finished is None else torch.tensor(finished),
    )  # fmt: skip
