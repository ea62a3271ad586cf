"""Sampled responses with the advantage of each of their tokens, and what is watched of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from burnish.rl.algorithm import OldLogprobs
from burnish.types.batch import Batch, shared
from burnish.types.completion import Completion, ResponseRows
from burnish.types.prompt import Prompt
from burnish.types.rollout import ScoredResponses
from burnish.types.samples import ResponseStats, outline, reflections

Asked = tuple[Prompt | None, ...]  # what each teacher reads in place of a prompt; None where it teaches nothing


@dataclass(frozen=True)
class AnnotatedTokens:
    """Responses with what needed a forward pass; [B, 0] stands for what nobody reads."""

    scored: ScoredResponses
    old: Tensor  # [B, T] log-probs that ratios refer to
    learner: Tensor  # [B, T] log-probs under the policy that learns, before its first step
    entropy: Tensor  # [B, T] of that policy, in nats
    reference: Tensor  # [B, T] log-probs under the reference
    compared: Tensor  # [B, T] log-probs whose distance from the reference's is the KL before the update
    value: Tensor  # [B, T] the value network's prediction
    old_logprobs: OldLogprobs  # whose log-probs old is
    memory: Any  # what the algorithm remembers between updates
    metrics: dict[str, float] = field(default_factory=dict)
    taught: Tensor = field(default_factory=lambda: torch.zeros(0, 0))  # [B, T] advantage that teachers give
    asked: list[Asked] = field(default_factory=list)  # [B], or none without teachers

    @property
    def kl_is_known(self) -> bool:
        """Whether the KL to the reference can be measured before the policy learns."""
        return self.compared.shape == self.reference.shape


@dataclass(kw_only=True)
class TokenBatch(Batch):
    """Responses to learn from, with the advantage of each of their tokens; [B, 0] stands for what nobody reads."""

    trace: Completion
    mask: Tensor  # [B, T] bool: the others are no terms at all
    advantage: Tensor  # [B, T]
    weight: Tensor  # [B, T] of a term in the policy's loss; it is not in the count that the loss is divided by
    old: Tensor  # [B, T]
    reference: Tensor  # [B, T]
    value: Tensor  # [B, T] the value network's prediction before the update
    returns: Tensor  # [B, T]
    held: Tensor  # [B, T] weight of a penalty for moving the log-prob of a token
    asked: list[Asked]  # [B]
    kl_factor: list[float]  # [B] of the KL to the reference
    kl_coef: float = shared()  # of the KL in the loss
    old_logprobs: OldLogprobs = shared(default="sampler")  # whose log-probs old is
    kl_measured: bool = shared(default=True)  # the KL before the update was; else the loss reports it
    limit: int = shared()  # tokens that a response could have at most
    update: int = shared()

    def costs(self) -> list[int]:
        return self.trace.costs()


@dataclass(kw_only=True)
class ResponseBatch(Batch):
    """Responses to learn from, M to a row."""

    answers: ResponseRows  # [B] rows
    good: Tensor  # [B] bool: false where the response is to be avoided
    reward: Tensor  # [B, M]; 0 of given responses
    reference: Tensor  # [B, M] log-probs under the reference; 0 without one
    point: Tensor  # [B] what implicit rewards are measured from: KTO's KL to the reference, MPO's mean
    weight: Tensor  # [B] of a row in the likelihood that is imitated
    metrics: dict[str, float] = shared()  # of all responses, also those that nothing is learned from

    def costs(self) -> list[int]:
        return self.answers.costs()


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


RUN = 4  # tokens of a run
FIRST = 8  # tokens whose entropy is watched


def response_stats(trace: Completion, texts: Sequence[str]) -> list[ResponseStats]:
    """Statistics of each response of a batch, whose texts are ``texts``.

    Arrays of one move off the device: a batch has hundreds of responses, and PyTorch's call costs more than a row.
    """
    ids, masks, logprob = (value.cpu().numpy() for value in (trace.ids, trace.mask, trace.logprob))
    found = []
    for text, own, mask, probs, finished in zip(texts, ids, masks, logprob, trace.finished.tolist(), strict=True):
        first = probs[mask][:FIRST].tolist()
        found.append(
            ResponseStats(
                length=int(mask.sum()),
                truncated=not finished,
                repeated=repeated(own[mask].tolist()),
                surprisal=-math.fsum(first) / len(first) if first else math.nan,
                outline=outline(text),
                reflections=reflections(text),
            )
        )
    return found


def repeated(ids: Sequence[int]) -> float:
    """Share of the runs of ``RUN`` tokens that occurred before; 0 without any run."""
    runs = list(zip(*(ids[start:] for start in range(RUN)), strict=False))
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
