"""Responses that nobody sampled, as tokens: those of a data set, and those that a reward model reads."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from burnish.language.model.universal import LanguageModel
from burnish.language.records import ResponseRecord
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, ResponseRows, read_at
from burnish.types.prompt import Prompt
from burnish.types.rollout import OfflineJudgements, OfflineResponses


class ResponseData:
    """Records, and how they become tensors."""

    def __init__(
        self,
        records: Sequence[ResponseRecord],
        model: LanguageModel,
        encode: Callable[[Sequence[Prompt]], Gathered[Encoded]],
    ) -> None:
        self.records, self.model, self.encode = list(records), model, encode

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
    model: LanguageModel, prompts: Gathered[Encoded], responses: Sequence[Sequence[int]]
) -> Completion:
    """Responses as if the policy had chosen each of their tokens; they were not sampled, so their log-probs are 0.

    Args:
        model: that reads and writes them.
        prompts: [B].
        responses: [B] ids of each.
    """
    ids = pad_sequence([torch.tensor(tokens, dtype=torch.long) for tokens in responses], batch_first=True)
    length = torch.tensor([len(tokens) for tokens in responses])
    return Completion.of_text(prompts, ids, length, axes=model.axes)
