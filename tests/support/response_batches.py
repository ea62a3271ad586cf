"""Responses of a tiny model that sees, with rewards, and workers that learn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from burnish.algorithms.base import Algorithm
from burnish.batches.responses import ResponseBatch, trace_of
from burnish.models.language.loading import load_language_model
from burnish.options import OptimizerOptions
from burnish.options.flow import ModelOptions
from burnish.options.language import CriticOptions, LanguageTrainerOptions
from burnish.tasks.language.roles import LanguageRoles
from burnish.training.auxiliary import AuxiliaryLoss
from burnish.training.parameter_groups import ParameterGroup
from burnish.training.trainer import Trainer
from burnish.types.completion import ResponseRows
from burnish.types.rollout import OfflineResponses, Prompt, ScoredResponses, Scores
from burnish.utils.timer import Stopwatch
from tests.support.language_samples import encode_all, folder_of, responses

FAMILY = "qwen2_5_vl"
INDEX = [0, 0, 0, 1, 1, 1, 2, 2, 2]  # prompts without a picture, with one, with several
LENGTHS = [4, 1, 3, 5, 2, 4, 3, 0, 2]  # one of them is empty
REWARDS = [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.3, 0.1, 0.9]


def answered(
    model: Any,
    rewards: Sequence[float] = REWARDS,
    missing: Sequence[int] = (),
    index: Sequence[int] = INDEX,
    lengths: Sequence[int] = LENGTHS,
) -> ScoredResponses:
    """Random responses with rewards; those to one prompt are a group."""
    reward, absent = torch.tensor(rewards), torch.zeros(len(index), dtype=torch.bool)
    absent[list(missing)] = True
    scores = Scores(
        reward=reward, missing=absent, components=reward[:, None], names=("r",), weights=(1.0,), notes=[""] * len(index)
    )
    return ScoredResponses(
        prompts=[Prompt(text=str(i)) for i in index],
        group=torch.tensor(index),
        sample=torch.arange(len(index)),
        scores=scores,
        trace=responses(model, encode_all(model, FAMILY), index, lengths),
        greedy=torch.full((len(index),), torch.nan),
        turn_rewards=torch.zeros(len(index), 0),
        limit=5,
        update=1,
        version=0,
        seed=0,
    )


def given(sampled: ScoredResponses, rows: Sequence[int], members: int, good: Sequence[bool] = ()) -> OfflineResponses:
    """Some of the responses as if they came from a file."""
    trace = sampled.trace.select(torch.tensor(rows))
    count = len(rows) // members
    return OfflineResponses(
        answers=ResponseRows(trace=trace, members=members),
        good=torch.tensor(list(good) or [True] * count),
        update=1,
        version=0,
        seed=0,
    )


class Bench:
    """A policy that has moved away from its reference, and workers around it."""

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        budget: int = 10_000,
        lr: float = 1e-2,
        auxiliary: AuxiliaryLoss | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.model = load_language_model(ModelOptions(path=str(folder_of(FAMILY)), device="cpu"))
        self.roles = LanguageRoles(
            self.model, algorithm.needs(), None, critic=CriticOptions(), freeze=[], temperature=1.0, layout="auto",
            micro_batch_size=budget, on_policy=True, memory=algorithm.make_memory(), seed=0,
        )  # fmt: skip
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for value in self.roles.parameters().values():
                value += 0.02 * torch.randn(value.shape, generator=draw)
        group = ParameterGroup("actor", self.roles.parameters(), OptimizerOptions(lr=lr), total_steps=10)
        self.workers = Trainer(
            self.roles, algorithm, [group], options=LanguageTrainerOptions(), ema=None, seed=0, watch=Stopwatch(),
            auxiliary=auxiliary,
        )  # fmt: skip

    def learned(self, collected: ScoredResponses | OfflineResponses) -> tuple[ResponseBatch, dict[str, float]]:
        return self.algorithm.credit(self.algorithm.annotate(collected, self.roles))

    def gradient(self, batch: ResponseBatch) -> tuple[float, Tensor]:
        """The loss of an optimizer batch and its gradient, summed over micro-batches as a worker does it."""
        self.zero_grad()
        size, total = self.algorithm.size(batch), 0.0
        for part in self.algorithm.micro_batches(batch, self.roles.micro_batch_size):
            loss = self.algorithm.loss(part, self.roles).total / size
            loss.backward()
            total += float(loss.detach())
        return total, self.flat_gradient()

    def zero_grad(self) -> None:
        for value in self.roles.parameters().values():
            value.grad = None

    def flat_gradient(self) -> Tensor:
        values = self.roles.parameters().values()
        return torch.cat([(torch.zeros_like(v) if v.grad is None else v.grad).flatten() for v in values])

    def weights(self) -> Tensor:
        return torch.cat([value.detach().flatten() for value in self.roles.parameters().values()])

    def sums(self, collected: ScoredResponses | OfflineResponses, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Summed log-probs of some responses, one at a time: under the policy with gradients, and the reference."""
        trace = trace_of(collected)
        ours, theirs = [], []
        for row in rows:
            alone = trace.select([row])
            ours.append(self.roles.policy(alone).logprob.sum())
            if self.algorithm.needs().reference:
                with torch.no_grad():
                    theirs.append(self.roles.reference(alone).logprob.sum())
        return torch.stack(ours), torch.stack(theirs) if theirs else torch.zeros(len(ours))


def reordered(sampled: ScoredResponses, order: Sequence[int]) -> ScoredResponses:
    """The same responses in another order."""
    return replace(sampled.select(torch.tensor(order)), seed=sampled.seed)
