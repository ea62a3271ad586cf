"""Responses of a data set as tensors: tokens behind encoded prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from burnish.data.language.judgements import JudgedRecord
from burnish.data.language.responses import ResponseRecord
from burnish.data.records import data_error
from burnish.data.values import shown
from burnish.language.model import LanguageModel
from burnish.language.offline import judged_completion, offline_completion
from burnish.options.language import LanguageDataOptions
from burnish.types.batch import Gathered
from burnish.types.completion import Encoded, ResponseRows
from burnish.types.judgements import OfflineJudgements
from burnish.types.prompt import Prompt
from burnish.types.rollout import OfflineResponses

R = TypeVar("R", bound=ResponseRecord)
TEMPLATE = 256  # tokens of a chat template around a question, at most


class ResponseData:
    """Records, and how they become tensors."""

    def __init__(
        self,
        records: Sequence[ResponseRecord],
        model: LanguageModel,
        encode: Callable[[Sequence[Prompt]], Gathered[Encoded]],
    ) -> None:
        self.records, self.model, self.encode = list(records), model, encode

    def batch(self, records: Sequence[Any], *, update: int, seed: int) -> Any:
        """Records as tensors, in order.

        Args:
            records: some of ``self.records``.
            update: policy update that trains on them.
            seed: of the run.
        """
        rows = [row for record in records for row in record.rows]
        prompts = self.encode([prompt for prompt, _ in rows])
        trace = offline_completion(self.model, prompts, [self.model.response_ids(text) for _, text in rows])
        return OfflineResponses(
            answers=ResponseRows(trace=trace, members=len(records[0].responses)),
            good=torch.tensor([record.good for record in records]),
            update=update,
            version=update - 1,
            seed=seed,
        )


class JudgementData(ResponseData):
    """Records with labels, for a reward model."""

    def batch(self, records: Sequence[JudgedRecord], *, update: int, seed: int) -> OfflineJudgements:
        rows = [row for record in records for row in record.rows]
        ends = [record.ends or None for record in records for _ in record.rows]
        prompts = self.encode([prompt for prompt, _ in rows])
        trace = judged_completion(self.model, prompts, [text for _, text in rows], ends)
        steps = max(len(record.target) for record in records)
        heads = len(records[0].margin)
        nothing = (math.nan,) * heads
        target = [[*record.target, *[nothing] * (steps - len(record.target))] for record in records]
        return OfflineJudgements(
            answers=ResponseRows(trace=trace, members=len(records[0].responses)),
            target=torch.tensor(target),
            margin=torch.tensor([[record.margin] * steps for record in records]),
            update=update,
            version=update - 1,
            seed=seed,
        )


def within_limits(
    records: Sequence[R],
    lengths: Mapping[str, int],
    model: LanguageModel,
    options: LanguageDataOptions,
    longest: int,
    tools: Sequence[dict[str, Any]] = (),
) -> list[R]:
    """The records that are short enough; none is truncated.

    Args:
        records: responses with their prompts.
        lengths: tokens of each prompt, by its uid, where there is a limit of these.
        model: whose tokens are counted.
        options: that limit, and what to do with longer records.
        longest: tokens of a response at most, its end included.
        tools: JSON schemas of functions that the prompts tell of.

    Raises:
        UserError: some are too long and ``overlong`` is error, or all of them are.
    """
    limit, positions = options.max_prompt_length, model.max_positions

    def too_long(record: ResponseRecord) -> str:
        for _, text in record.rows:
            if (count := len(model.response_ids(text))) > longest:
                return f"a response of {count} tokens, but rollout.max_new_tokens is {longest}: {shown(text)}"
        for prompt, _ in record.rows:
            if limit is not None and (count := lengths[prompt.uid]) > limit:
                return f"a prompt of {count} tokens, but data.max_prompt_length is {limit}: {shown(prompt.text)}"
        return too_long_together(record)

    def too_long_together(record: ResponseRecord) -> str:
        for prompt, text in record.rows:
            if prompt.size + len(text.encode()) + TEMPLATE < positions:
                continue  # as a token has at least one byte
            before = lengths.get(prompt.uid) or model.count_tokens(prompt.chat(), prompt.told(tools))
            if (count := before + len(model.response_ids(text))) > positions:
                return (
                    f"a prompt and a response of {count} tokens, but the model has {positions} positions "
                    f"({model.position_limit}): {shown(prompt.text)}"
                )
        return ""

    problems = [too_long(record) for record in records]
    kept = [record for record, problem in zip(records, problems, strict=True) if not problem]
    if len(kept) < len(records) and (options.overlong == "error" or not kept):
        head = (
            f"{len(records) - len(kept)} of {len(records)} records are too long; raise the limit, shorten them, or "
            "leave them out with data.overlong=filter"
        )
        raise data_error([problem for problem in problems if problem], head)
    return kept
