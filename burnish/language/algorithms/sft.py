"""What losses on responses as units have in common: where the responses come from, and their log-probs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from burnish.language.algorithms.base import LanguageNeeds, in_parts, token_budget_batches
from burnish.options import Count, Finite, Positive
from burnish.registry import options, register
from burnish.rl.algorithm import Algorithm, Metrics, range_metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.batches import ResponseBatch
    from burnish.language.roles import LanguageRoles, TokenRole
    from burnish.types.completion import Completion
    from burnish.types.rollout import Loss, OfflineResponses, ScoredResponses


@options
class ResponseAlgorithm(Algorithm):
    """Base of those that learn from sampled responses or from given ones."""

    online: bool = True
    """Learn from own responses and their rewards; false learns from the responses in data.train_files."""

    def micro_batches(self, batch: ResponseBatch, size: int) -> Iterator[ResponseBatch]:
        answers = batch.answers
        return (batch.select(rows) for rows in token_budget_batches(answers.trace, size, together=answers.members))

    def size(self, batch: ResponseBatch) -> int:
        return len(batch)


@options
class ReferenceAlgorithm(ResponseAlgorithm):
    """Base of those that compare log-probs with a reference's: log pi - log pi_ref is an implicit reward."""

    beta: Positive = 0.1
    """Strength of the pull to the reference."""
    average_log_prob: bool = False
    """Count the mean log-prob of a response's tokens instead of their sum, so that length counts for nothing."""

    def response_logprob(self, logprob: Tensor, mask: Tensor) -> Tensor:
        """Log-probs of responses, [B], from those of their tokens [B, T]."""
        from burnish.rl.surrogates import masked, sequence_mean

        return sequence_mean(logprob, mask) if self.average_log_prob else masked(logprob, mask).sum(-1)

    def response_logprobs(self, role: TokenRole, trace: Completion, roles: LanguageRoles) -> Tensor:
        """Log-probs of responses under a network, without gradient: [B]."""
        import torch

        if not len(trace):
            return torch.zeros(0)
        (logprob,) = in_parts(lambda part: [role(part).logprob], trace, roles)
        return self.response_logprob(logprob, trace.mask)


@register("language algorithm", "sft")
class SFT(ResponseAlgorithm):
    """Make the tokens of responses more likely; prompts and pictures are only read."""

    online: bool = False
    """Imitate the best of the own responses to a prompt; false imitates the responses in data.train_files."""
    best: Count = 1
    """online: the N best responses to a prompt are imitated."""
    min_reward: Finite | None = None
    """online: and only those with at least this reward; null takes the best, however good they are."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = "token-mean"
    """How the losses of tokens become one: their mean over the batch, or the mean over responses of their means or
    sums."""

    @model_validator(mode="after")
    def _choice_is_read(self) -> Self:
        if not self.online and (self.best != 1 or self.min_reward is not None):
            raise ValueError(
                "best and min_reward are never read when online is false: the responses are given; leave them out"
            )
        return self

    def needs(self) -> LanguageNeeds:
        return LanguageNeeds(data="prompts" if self.online else "demonstrations", groups=self.online)

    def compute_advantages(self, annotated: ScoredResponses | OfflineResponses) -> tuple[ResponseBatch, Metrics]:
        import torch

        from burnish.language.batches import ResponseBatch
        from burnish.types.completion import ResponseRows
        from burnish.types.rollout import OfflineResponses

        metrics: Metrics = {}
        if isinstance(annotated, OfflineResponses):
            answers = annotated.answers
        else:
            rows = self._best(annotated)
            answers = ResponseRows(trace=annotated.trace.select(rows), members=1)
            judged = annotated.scores.reward[~annotated.scores.missing]
            metrics = range_metrics(score=judged, rewards=judged) | {"train/imitated": float(len(rows))}
            if len(rows):
                metrics["train/imitated_reward"] = float(annotated.scores.reward[rows].mean())
        count = len(answers)
        nothing, good = torch.zeros(count), torch.ones(count, dtype=torch.bool)
        return ResponseBatch(answers=answers, reference=nothing[:, None], good=good, point=nothing), metrics

    def _best(self, answered: ScoredResponses) -> Tensor:
        """Rows of the responses that are imitated."""
        from burnish.rl.rewards import select_best

        scores = answered.scores
        rows = select_best(scores.reward, answered.group, scores.missing, self.best)
        return rows if self.min_reward is None else rows[scores.reward[rows] >= self.min_reward]

    def loss(self, part: ResponseBatch, roles: LanguageRoles) -> Loss:
        from burnish.language.losses import sft
        from burnish.rl.surrogates import masked, weights
        from burnish.types.batch import to_device
        from burnish.types.rollout import Loss

        trace = part.answers.trace
        scores, tokens = roles.policy(trace), int(trace.mask.sum())
        mask = to_device(trace.mask, scores.logprob.device)
        total = (sft(scores.logprob, mask) * weights(mask, self.loss_agg_mode)).sum()
        entropy = masked(scores.entropy, mask).detach().sum()
        return Loss(total, {"actor/sft_loss": (total.detach(), self.size(part)), "actor/entropy": (entropy, tokens)})

    def size(self, batch: ResponseBatch) -> int:
        from burnish.rl.surrogates import terms

        return int(terms(batch.answers.trace.mask, self.loss_agg_mode))
