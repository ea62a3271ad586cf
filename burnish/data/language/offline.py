"""Responses of a data set as tensors: tokens behind encoded prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch

from burnish.data.language.judgements import JudgedRecord
from burnish.data.language.responses import ResponseRecord
from burnish.data.lines import data_error
from burnish.data.values import shown
from burnish.language.given import judged_completion, offline_completion
from burnish.language.model import LanguageModel
from burnish.options.language import LanguageDataOptions
from burnish.types.batch import Gathered
from burnish.types.completion import Encoded, ResponseRows
from burnish.types.judgements import OfflineJudgements
from burnish.types.prompt import Prompt
from burnish.types.rollout import OfflineResponses


class ResponseData:
    """Records, and how they become tensors."""

    def __init__(
        self,
        records: Sequence[ResponseRecord],
        model: LanguageModel,
        encode: Callable[[Sequence[Prompt]], Gathered[Encoded]],
    ) -> None:
        self.records, self.model, self.encode = list(records), model, encode

    def within_length(self, options: LanguageDataOptions, longest: int) -> Self:
        """The records that are short enough; none is truncated.

        Args:
            options: the limit of prompts, and what to do with longer records.
            longest: tokens of a response at most, its end included.

        Raises:
            UserError: some are too long and ``overlong`` is error, or all of them are.
        """
        kept: list[ResponseRecord] = []
        problems: list[str] = []
        for record in self.records:
            problem = self._too_long(record, options.max_prompt_length, longest)
            if problem:
                problems.append(problem)
            else:
                kept.append(record)
        if problems and (options.overlong == "error" or not kept):
            head = (
                f"{len(problems)} of {len(self.records)} records are too long; raise the limit, or leave them out with "
                "data.overlong=filter"
            )
            raise data_error(problems, head)
        return type(self)(kept, self.model, self.encode)

    def _too_long(self, record: ResponseRecord, limit: int | None, longest: int) -> str:
        """Why a record is too long; "" if it isn't."""
        for _, text in record.rows:
            length = len(self.model.response_ids(text))
            if length > longest:
                return f"a response of {length} tokens, but rollout.max_new_tokens is {longest}: {shown(text)}"
        for prompt in dict.fromkeys(prompt for prompt, _ in record.rows):
            length = 0 if limit is None else self.encode([prompt]).table.lengths[0]
            if limit is not None and length > limit:
                return f"a prompt of {length} tokens, but data.max_prompt_length is {limit}: {shown(prompt.text)}"
        return ""

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
