"""What losses on responses as units have in common: where the responses come from, and their log-probs."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from burnish.language.algorithms.base import LanguageNeeds, RowsOfResponses, TokenWeighting, in_parts
from burnish.options import Positive
from burnish.registry import options, register
from burnish.rl.algorithm import Metrics, range_metrics
from burnish.rl.imitation import BestOfOwn

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.batches import ResponseBatch
    from burnish.language.roles import LanguageRoles, TokenRole
    from burnish.types.completion import Completion
    from burnish.types.rollout import Loss, OfflineResponses, ScoredResponses


@options
class ResponseAlgorithm(RowsOfResponses):
    """Base of those that learn from sampled responses or from given ones."""

    online: bool = True
    """Learn from own responses and their rewards; false learns from the responses in data.train_files."""

    @abstractmethod
    def sampled_rows(self, scored: ScoredResponses) -> tuple[Tensor, Tensor]:
        """Rows [R, M] of the own responses that are learned from, M together, and which are good ones [R]."""

    def learned(self, collected: ScoredResponses | OfflineResponses) -> ResponseBatch:
        """The responses that are learned from, as if there were no reference."""
        import torch

        from burnish.language.batches import ResponseBatch
        from burnish.types.completion import ResponseRows
        from burnish.types.rollout import OfflineResponses

        metrics: Metrics = {}
        if isinstance(collected, OfflineResponses):
            answers, good = collected.answers, collected.good
            reward = torch.zeros(len(answers), answers.members)
        else:
            scores, (rows, good) = collected.scores, self.sampled_rows(collected)
            answers = ResponseRows(trace=collected.trace.select(rows.flatten()), members=rows.shape[1])
            reward, known = scores.reward[rows], scores.reward[~scores.missing]
            metrics = range_metrics(score=known, rewards=known)
        nothing = torch.zeros(reward.shape)
        return ResponseBatch(
            answers=answers, good=good, reward=reward, reference=nothing, point=nothing[:, 0],
            weight=torch.ones(len(good)), metrics=metrics,
        )  # fmt: skip

    def compute_advantages(self, annotated: ResponseBatch) -> tuple[ResponseBatch, Metrics]:
        return annotated, self.reported(annotated) | annotated.metrics

    @abstractmethod
    def reported(self, batch: ResponseBatch) -> Metrics:
        """What there is to report of the responses that are learned from."""


@options
class ReferenceAlgorithm(ResponseAlgorithm):
    """Base of those that compare log-probs with a reference's: log pi - log pi_ref is an implicit reward."""

    beta: Positive = 0.1
    """Strength of the pull to the reference."""
    average_log_prob = True  # of a response's tokens, in place of their sum

    def response_logprob(self, logprob: Tensor, mask: Tensor) -> Tensor:
        """Log-probs of responses, [B], from those of their tokens [B, T]."""
        from burnish.rl.surrogates import masked, sequence_mean

        return sequence_mean(logprob, mask) if self.average_log_prob else masked(logprob, mask).sum(-1)

    def response_logprobs(self, role: TokenRole, trace: Completion, roles: LanguageRoles) -> Tensor:
        """Log-probs of responses under a network, without gradient: [B]."""
        if not len(trace):
            return trace.logprob.sum(-1)
        (logprob,) = in_parts(lambda rows: [role(trace.select(rows)).logprob], trace, roles)
        return self.response_logprob(logprob, trace.mask)


@register("language algorithm", "sft")
class SFT(BestOfOwn, ResponseAlgorithm):
    """Make the tokens of responses more likely; prompts and images are only read."""

    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = "token-mean"
    """How the losses of tokens become one: their mean over the batch, or the mean over responses of their means or
    sums."""
    weighting: TokenWeighting = "equal"
    """Weight of a token with probability p in its loss: equal: 1; probability: p (DFT); phi: p (1 - p), which is small
    where the policy is certain and where it is far off (CHORD)."""

    def needs(self) -> LanguageNeeds:
        return LanguageNeeds(data="prompts" if self.online else "demonstrations", groups=self.online)

    def sampled_rows(self, scored: ScoredResponses) -> tuple[Tensor, Tensor]:
        rows, _ = self.imitated(scored)
        return rows[:, None], rows >= 0

    def compute_advantages(self, annotated: Any) -> tuple[ResponseBatch, Metrics]:
        from dataclasses import replace

        batch = self.learned(annotated)
        if self.online:
            batch = replace(batch, weight=self.imitated(annotated)[1])
        return super().compute_advantages(batch)

    def reported(self, batch: ResponseBatch) -> Metrics:
        if not self.online:
            return {}
        return {"train/imitated": float(len(batch))} | (
            {"train/imitated_reward": float(batch.reward.mean())} if len(batch) else {}
        )

    def loss(self, part: ResponseBatch, roles: LanguageRoles) -> Loss:
        from burnish.language.losses import token_weight
        from burnish.rl.surrogates import masked, weights
        from burnish.types.batch import to_device
        from burnish.types.rollout import Loss

        trace = part.answers.trace
        scores, tokens = roles.policy(trace), int(trace.mask.sum())
        mask = to_device(trace.mask, scores.logprob.device)
        weight = to_device(part.weight, mask.device)[:, None] * weights(mask, self.loss_agg_mode)
        if self.weighting != "equal":
            weight = weight * token_weight(scores.logprob, self.weighting)
        total = (-masked(scores.logprob, mask) * weight).sum()
        entropy = masked(scores.entropy, mask).detach().sum()
        return Loss(total, {"actor/sft_loss": (total.detach(), self.size(part)), "actor/entropy": (entropy, tokens)})

    def size(self, batch: ResponseBatch) -> int:
        from burnish.rl.surrogates import terms

        return int(terms(batch.answers.trace.mask, self.loss_agg_mode))
