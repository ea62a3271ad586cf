"""What losses on responses as units have in common: where the responses come from, and their log-probs."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Literal

from burnish.language.algorithms.base import LanguageNeeds, RowsOfResponses, TokenWeighting, in_parts
from burnish.options import Count, Finite, Positive
from burnish.registry import ReadIf, options, register
from burnish.rl.algorithm import Metrics, range_metrics

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
class SFT(ResponseAlgorithm):
    """Make the tokens of responses more likely; prompts and images are only read."""

    online: bool = False
    """Imitate the best of the own responses to a prompt; false imitates the responses in data.train_files."""
    best: Annotated[Count, ReadIf("online")] = 1
    """online: the N best responses to a prompt are imitated."""
    min_reward: Annotated[Finite | None, ReadIf("online")] = None
    """online: and only those with at least this reward; null takes the best, however good they are."""
    reward_temperature: Annotated[Positive | None, ReadIf("online")] = None
    """online: weigh each of them by exp(reward / this), relative to the others to its prompt (reward-weighted
    regression); null weighs all alike."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = "token-mean"
    """How the losses of tokens become one: their mean over the batch, or the mean over responses of their means or
    sums."""
    weighting: TokenWeighting = "equal"
    """Weight of a token with probability p in its loss: equal: 1; probability: p (DFT); phi: p (1 - p), which is small
    where the policy is certain and where it is far off (CHORD)."""

    def needs(self) -> LanguageNeeds:
        return LanguageNeeds(data="prompts" if self.online else "demonstrations", groups=self.online)

    def sampled_rows(self, scored: ScoredResponses) -> tuple[Tensor, Tensor]:
        from burnish.rl.preference import select_best

        scores = scored.scores
        rows = select_best(scores.reward, scored.group, scores.missing, self.best)
        rows = rows if self.min_reward is None else rows[scores.reward[rows] >= self.min_reward]
        return rows[:, None], rows >= 0

    def compute_advantages(self, annotated: Any) -> tuple[ResponseBatch, Metrics]:
        from dataclasses import replace

        from burnish.rl.preference import likelihood_weights

        batch = self.learned(annotated)
        if self.reward_temperature is not None:
            group = annotated.group[self.sampled_rows(annotated)[0][:, 0]]
            batch = replace(batch, weight=likelihood_weights(batch.reward[:, 0], group, self.reward_temperature))
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
