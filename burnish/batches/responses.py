"""Responses that are judged as wholes: imitated, compared in pairs, or found good or bad."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.types.batch import Batch
from burnish.types.completion import Completion, ResponseRows
from burnish.types.rollout import OfflineJudgements, OfflineResponses, ScoredResponses


@dataclass(frozen=True)
class AnnotatedResponses:
    """Responses with what needed a forward pass."""

    collected: ScoredResponses | OfflineResponses
    reference: Tensor  # [N] log-prob of each response under the reference; 0 where nobody reads it
    drift: Tensor  # [K] log-ratios of policy and reference at those that KTO measures from; [0] where nobody reads them
    point: float = 0.0  # what implicit rewards are measured from, where it is known before the update


@dataclass(kw_only=True)
class ResponseBatch(Batch):
    """Responses to learn from, M to a row."""

    answers: ResponseRows  # [B] rows
    reference: Tensor  # [B, M] log-probs under the reference; 0 without one
    good: Tensor  # [B] bool: false where the response is to be avoided
    point: Tensor  # [B] what implicit rewards are measured from: KTO's KL to the reference, MPO's mean

    def costs(self) -> list[int]:
        return self.answers.costs()


def trace_of(collected: ScoredResponses | OfflineResponses | OfflineJudgements) -> Completion:
    """All responses of a batch, sampled or given."""
    return collected.trace if isinstance(collected, ScoredResponses) else collected.answers.trace


def mismatched(trace: Completion) -> Completion:
    """Every response behind the next prompt of the batch instead of its own; the first follows the last.

    Responses to one prompt move to the same other one. Where all have one prompt, there is no other, and nothing is
    returned.
    """
    index = trace.prompts.index.tolist()
    prompts = list(dict.fromkeys(index))
    if len(prompts) < 2:
        return trace.select([])
    after = dict(zip(prompts, [*prompts[1:], prompts[0]], strict=True))
    other = torch.tensor([after[prompt] for prompt in index])
    first = torch.tensor(trace.prompts.table.next_position)
    within = torch.arange(trace.ids.shape[1]) < trace.length[:, None]
    moved = trace.positions + (first[other] - first[trace.prompts.index])[:, None, None]
    return dataclasses.replace(
        trace,
        prompts=dataclasses.replace(trace.prompts, index=other),
        positions=torch.where(within[:, None], moved, trace.positions),
    )
