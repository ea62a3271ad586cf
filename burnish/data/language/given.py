"""Responses that somebody wrote, as a network learns from them: tokens behind encoded prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from burnish.data.language.options import LanguageDataOptions
from burnish.data.language.samples import read_demonstrations, read_judgements, read_preferences
from burnish.data.language.values import shown
from burnish.data.lines import told
from burnish.language.model import LanguageModel
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, Features, ResponseRows
from burnish.types.prompt import Prompt
from burnish.types.rollout import OfflineResponses

Holds = Literal["demonstrations", "preferences", "judgements"]


@dataclass(frozen=True)
class ResponseRecord:
    """A prompt and what was said to it: one response, or a chosen and a rejected one."""

    prompt: Prompt
    responses: tuple[str, ...]
    good: bool = True

    @property
    def where(self) -> str:
        """Where it stands, for messages."""
        return self.prompt.where

    @cached_property
    def uid(self) -> str:
        """A hash of its content."""
        content = [self.prompt.uid, *self.responses, self.good]
        return hashlib.blake2b(json.dumps(content, ensure_ascii=False).encode(), digest_size=8).hexdigest()


def read_responses(files: str | Sequence[str], options: LanguageDataOptions, holds: Holds) -> list[ResponseRecord]:
    """Records that hold responses.

    Raises:
        UserError: as ``read_questions``.
    """
    if holds == "demonstrations":
        return [ResponseRecord(one.prompt, (one.response,)) for one in read_demonstrations(files, options)]
    if holds == "preferences":
        return [ResponseRecord(one.prompt, (one.chosen, one.rejected)) for one in read_preferences(files, options)]
    return [ResponseRecord(one.prompt, (one.response,), one.good) for one in read_judgements(files, options)]


class ResponseData:
    """Records, and how some of them become tensors."""

    def __init__(
        self,
        records: Sequence[ResponseRecord],
        model: LanguageModel,
        encode: Callable[[Sequence[Prompt]], Gathered[Encoded]],
    ) -> None:
        self.records, self.model, self.encode = list(records), model, encode

    def within(self, options: LanguageDataOptions, longest: int) -> ResponseData:
        """Those that are short enough; nothing is ever cut.

        Args:
            options: the limit of prompts, and what happens to what is longer.
            longest: tokens that a response may have, its end included.

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
                f"{len(problems)} of {len(self.records)} records are too long, and nothing is ever cut; raise the "
                "limit, or leave them out with data.overlong=filter"
            )
            raise told(problems, head)
        return ResponseData(kept, self.model, self.encode)

    def _too_long(self, record: ResponseRecord, limit: int | None, longest: int) -> str:
        """What is too long about a record; "" if nothing is."""
        for text in record.responses:
            length = len(self.model.answer(text))
            if length > longest:
                return f"{length} tokens in a response, rollout.max_new_tokens is {longest}: {shown(text)}"
        if limit is not None:
            length = self.encode([record.prompt]).table.lengths[0]
            if length > limit:
                return f"{length} tokens in a prompt, data.max_prompt_length is {limit}: {shown(record.prompt.text)}"
        return ""

    def given(self, records: Sequence[ResponseRecord], *, update: int, seed: int) -> OfflineResponses:
        """Some records as tensors, in that order.

        Args:
            records: of ``self.records``.
            update: policy update that they are for.
            seed: of the run.
        """
        rows = [(record.prompt, text) for record in records for text in record.responses]
        prompts = self.encode([prompt for prompt, _ in rows])
        trace = written(self.model, prompts, [self.model.answer(text) for _, text in rows])
        return OfflineResponses(
            answers=ResponseRows(trace=trace, members=len(records[0].responses)),
            good=torch.tensor([record.good for record in records]),
            update=update,
            version=update - 1,
            seed=seed,
        )


def written(model: LanguageModel, prompts: Gathered[Encoded], answers: Sequence[Sequence[int]]) -> Completion:
    """Responses as if the policy had chosen each of their tokens; nobody sampled them, so their log-probs are 0.

    Args:
        model: the family.
        prompts: [B].
        answers: [B] ids of each.
    """
    length = torch.tensor([len(ids) for ids in answers])
    mask = torch.arange(int(length.max())) < length[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.long)
    ids[mask] = torch.tensor([token for some in answers for token in some], dtype=torch.long)
    return Completion(
        prompts=prompts,
        ids=ids,
        mask=mask,
        logprob=torch.zeros(mask.shape),
        positions=_positions(prompts, mask, model.axes),
        length=length,
        finished=torch.ones(len(length), dtype=torch.bool),
        features=[Features.none()] * len(length),
    )


def _positions(prompts: Gathered[Encoded], mask: Tensor, axes: int) -> Tensor:
    first = torch.tensor(prompts.table.next_position)[prompts.index]
    places = (first[:, None] + torch.arange(mask.shape[1])) * mask
    return places[:, None].expand(-1, axes, -1)
