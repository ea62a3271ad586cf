"""The few responses that trainer and vLLM both score after each weight sync."""

from __future__ import annotations

from dataclasses import replace

import torch

from burnish.language.model import LanguageModel
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, Features
from burnish.utils import random

RESPONSES = 4
TOKENS = 64  # of a response that was sampled, at most
IMAGINED = 8  # tokens of a response that was not


def imagined(model: LanguageModel, prompts: Encoded, seed: int) -> Completion:
    """Responses of arbitrary tokens to a few of the prompts, for the time before there are real ones."""
    table = prompts.select(_telling(prompts))
    count, banned = len(table), set(model.banned.tolist())
    allowed = torch.tensor([token for token in range(model.vocabulary) if token not in banned])
    rows = [random.permutation(len(allowed), seed, "probe", row)[:IMAGINED] for row in range(count)]
    ids = allowed[torch.tensor(rows)]
    positions = torch.tensor(table.next_position)[:, None] + torch.arange(ids.shape[1])
    return Completion(
        prompts=Gathered(table=table, index=torch.arange(count)),
        ids=ids,
        mask=torch.ones_like(ids, dtype=torch.bool),
        logprob=torch.zeros(ids.shape),
        positions=positions[:, None].expand(-1, model.axes, -1),
        length=torch.full((count,), ids.shape[1]),
        finished=torch.zeros(count, dtype=torch.bool),
        features=[Features.none()] * count,
    )


def remembered(completion: Completion) -> Completion | None:
    """Some of what was just sampled: comparisons should be about what is read and written. None if all are empty."""
    first: dict[int, int] = {}
    for row, (prompt, length) in enumerate(
        zip(completion.prompts.index.tolist(), completion.length.tolist(), strict=True)
    ):
        if length:
            first.setdefault(prompt, row)
    if not first:
        return None
    prompts = list(first)
    chosen = _telling(completion.prompts.table.select(prompts))
    kept = completion.select([first[prompts[number]] for number in chosen])
    return replace(
        kept,
        ids=kept.ids[:, :TOKENS],
        mask=kept.mask[:, :TOKENS],
        logprob=kept.logprob[:, :TOKENS],
        positions=kept.positions[:, :, :TOKENS],
        length=kept.length.clamp_max(TOKENS),
    )


def _telling(prompts: Encoded) -> list[int]:
    """A few prompts, those with the most pixels first: they take the longest way through the network."""
    return sorted(range(len(prompts)), key=lambda row: -prompts.features[row].size)[:RESPONSES]
