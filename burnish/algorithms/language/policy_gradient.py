"""What policy gradients over tokens have in common: a token is an action; a subclass says what it is worth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from burnish.algorithms.base import Metrics, clip_range, spread_metrics
from burnish.algorithms.correction import RolloutCorrection
from burnish.algorithms.language.annotation import Passes
from burnish.algorithms.language.base import LanguageNeeds, LanguageRoles
from burnish.algorithms.language.shaping import RewardShaping
from burnish.language.cost import token_budget_batches
from burnish.options import Count, Finite, NonNegative, Positive
from burnish.registry import options

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import AnnotatedTokens, TokenBatch, TokenRewards
    from burnish.language.logprobs import TokenScores
    from burnish.types.rollout import Loss, ScoredResponses

Share = Annotated[float, Field(gt=0, le=1)]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


@options
class TokenPolicyGradient(RewardShaping):
    """Rewards, then advantages, then a loss per token. A subclass says what a token is worth, and what its loss is."""

    advantage_clip: Positive | None = None
    """Largest size of an advantage; null never clips."""
    advantage_clip_low: Finite | None = None
    """Smallest advantage if negative ones are to be bounded otherwise; null takes -advantage_clip."""
    mask_truncated: bool = False
    """Learn nothing from responses that were cut at the limit; they are compared with all the same."""
    high_entropy_fraction: Share = 1.0
    """Learn from so many of the tokens alone, those where the policy was least decided; one threshold for all of an
    update."""
    high_entropy_count: Literal["all", "selected"] = "all"
    """What the policy's loss on them is divided by: all tokens as before, or only as many as are selected, of the
    update or, with seq-mean-token-mean, of their response. A KL and an entropy bonus stay means over all tokens."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus."""
    loss_agg_mode: Aggregation = "token-mean"
    """How the losses of tokens become one: their mean over the batch; the mean over responses of their means, of their
    sums, or of their sums divided by loss_length."""
    loss_length: Count | None = None
    """What seq-mean-token-sum-norm divides by; null takes rollout.max_new_tokens."""
    rollout_correction: RolloutCorrection | None = None
    """Correct what sampler and trainer disagree about, by importance weights and rejection; null trusts the sampler.
    Its steps are tokens here. Where pipeline.depth is above 0 it is on unless it is set to null."""

    @model_validator(mode="after")
    def _shares_are_read(self) -> Self:
        clip_range("advantage_clip", self.advantage_clip_low, self.advantage_clip)
        if self.high_entropy_fraction == 1 and self.high_entropy_count != "all":
            raise ValueError("high_entropy_count is never read when high_entropy_fraction is 1; leave it out")
        if self.high_entropy_count != "all" and "token-sum" in self.loss_agg_mode:
            raise ValueError(
                f"high_entropy_count is {self.high_entropy_count}, but loss_agg_mode {self.loss_agg_mode} "
                "divides by no number of tokens; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _length_is_read(self) -> Self:
        if self.loss_length is not None and self.loss_agg_mode != "seq-mean-token-sum-norm":
            raise ValueError(
                f"loss_length is {self.loss_length}, and only loss_agg_mode=seq-mean-token-sum-norm reads it; "
                f"loss_agg_mode is {self.loss_agg_mode}"
            )
        if self.rollout_correction is not None and self.rollout_correction.measure != "joint":
            raise ValueError(
                f"rollout_correction.measure is {self.rollout_correction.measure}, which is read for denoising steps "
                "alone: a token's log-prob is no mean over elements; leave it out"
            )
        return self

    def needs(self) -> LanguageNeeds:
        kl = self.kl
        return LanguageNeeds(
            reference=kl is not None, refreshed=kl is not None and kl.refresh_every is not None, groups=False
        )

    def advantages(self, rewards: TokenRewards) -> tuple[Tensor, Tensor]:
        """Advantages and returns of tokens, [B, T] each."""
        raise NotImplementedError

    def surrogate(
        self, logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each token and what it reports, [B, T] each, 0 where masked; with ``ratio`` if there is one."""
        raise NotImplementedError

    def _is_old(self, roles: LanguageRoles) -> bool:
        """Whether the policy is still the one that sampled, so that its own log-probs are exactly the old ones."""
        return not roles.moved

    def _passes(self, roles: LanguageRoles) -> Passes:
        return Passes(
            self.needs(), recompute=self.rollout_correction is not None, check=None,
            entropy=self.high_entropy_fraction < 1, bypass=False, measure=self.kl is not None and self.kl.early,
        )  # fmt: skip

    def annotate(self, answered: ScoredResponses, roles: LanguageRoles) -> AnnotatedTokens:
        return self._passes(roles).annotate(answered, roles)

    def credit(self, annotated: AnnotatedTokens) -> tuple[TokenBatch, Metrics]:
        from burnish.advantages import clip_values
        from burnish.batches.tokens import TokenBatch

        answered, trace, metrics = annotated.answered, annotated.answered.trace, dict(annotated.metrics)
        rewards, coef, shaped = self.shape(annotated)
        advantage, returns = self.advantages(rewards)
        metrics |= shaped | _reported(answered, rewards, advantage, returns)
        if self.advantage_clip is not None or self.advantage_clip_low is not None:
            low, high = clip_range("advantage_clip", self.advantage_clip_low, self.advantage_clip)
            advantage, metrics["critic/advantages/clip_ratio"] = clip_values(advantage, low, high, rewards.mask)
        trained = rewards.mask & trace.finished[:, None] if self.mask_truncated else rewards.mask
        weight, trained, weighed = self._weights(annotated, trained)
        learned = TokenBatch(
            trace=trace,
            mask=trained,
            advantage=advantage,
            weight=weight,
            old=annotated.old,
            reference=annotated.reference,
            value=annotated.value,
            returns=returns,
            kl_coef=coef,
            recomputed=annotated.recomputed,
            kl_measured=self.kl is None or self.measured(annotated),
            limit=answered.limit,
            update=answered.update,
        )
        return learned.select(trained.any(1).nonzero().flatten()), metrics | weighed

    def _weights(self, annotated: AnnotatedTokens, trained: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        """Weight of each token in the policy's loss, which tokens are terms, and what there is to report."""
        from burnish.losses.tokens import high_entropy_mask

        weight, metrics = trained.float(), {}
        if self.high_entropy_fraction < 1:
            selected = high_entropy_mask(annotated.entropy, trained, self.high_entropy_fraction)
            metrics["actor/high_entropy_ratio"] = float(selected.sum() / trained.sum().clamp_min(1))
            weight = selected.float()
            if self.high_entropy_count == "selected":
                counted, chosen = trained.sum(1, keepdim=True), selected.sum(1, keepdim=True)
                if self.loss_agg_mode == "token-mean":
                    counted, chosen = counted.sum(), chosen.sum()
                weight = weight * counted / chosen.clamp_min(1)
        if self.rollout_correction is not None:
            sampled = annotated.answered.trace.logprob
            factor, trained, corrected = self.rollout_correction.apply(annotated.learner, sampled, trained)
            weight, metrics = weight * factor, metrics | corrected
        return weight, trained, metrics

    def micro_batches(self, batch: TokenBatch, size: int) -> Iterator[TokenBatch]:
        return (batch.select(rows) for rows in token_budget_batches(batch.trace, size))

    def loss(self, part: TokenBatch, roles: LanguageRoles) -> Loss:
        return self.policy_loss(part, roles.policy(part.trace), roles)

    def policy_loss(self, part: TokenBatch, scores: TokenScores, roles: LanguageRoles) -> Loss:
        """Surrogate, KL and entropy of a micro-batch."""
        from burnish.losses.tokens import kl_estimate, masked
        from burnish.losses.tokens import terms as count
        from burnish.types.batch import to_device
        from burnish.types.rollout import Loss

        mask, logprob = part.mask, scores.logprob
        # then its own log-probs are exactly the old ones; another micro-batch may have rounded them otherwise
        itself = self._is_old(roles) or (part.recomputed and roles.fresh)
        old = logprob.detach() if itself else part.old
        loss, values = self.surrogate(logprob, old, part.advantage, mask)
        loss = loss * part.weight
        terms = {"actor/pg_loss": loss}
        entropy = masked(scores.entropy, mask)
        if self.entropy_coef > 0:
            loss = loss - self.entropy_coef * entropy
        if self.kl is not None and self.kl.route == "loss":
            kind = self.kl.estimate
            terms["actor/kl_loss"] = kl = kl_estimate(
                logprob, part.reference, mask, kind, old=old if kind == "unbiased" else None
            )
            loss = loss + part.kl_coef * kl
        if "ratio" in values:
            ratio = values.pop("ratio")
            values |= {"actor/ratio_mean": ratio, "actor/ratio_square": ratio.square()}
        if not roles.moved:
            sampled = to_device(part.trace.logprob, logprob.device)
            values["rollout_corr/logprob_abs_diff"] = masked((logprob - sampled).abs(), mask)
        values["actor/entropy"] = entropy
        tokens, size = mask.sum(), count(mask, self.loss_agg_mode)
        metrics: dict[str, Any] = {name: (value.detach().sum(), tokens) for name, value in values.items()}
        metrics |= {name: (self._total(value, part).detach(), size) for name, value in terms.items()}
        if self.kl is not None and not part.kl_measured and roles.fresh:
            estimate = kl_estimate(logprob.detach(), part.reference, mask, self.kl.value_kind)
            metrics["actor/kl_per_response"] = estimate.sum(), mask.any(1).sum()
        return Loss(self._total(loss, part), metrics)

    def _total(self, values: Tensor, part: TokenBatch) -> Tensor:
        """Losses of tokens [B, T] as the sum that is divided by the size of the batch."""
        from burnish.losses.tokens import weights

        norm = self.loss_agg_mode == "seq-mean-token-sum-norm"
        return (
            values * weights(part.mask, self.loss_agg_mode, (self.loss_length or part.limit) if norm else None)
        ).sum()

    def size(self, batch: TokenBatch) -> int:
        from burnish.losses.tokens import size

        return size(batch.mask, self.loss_agg_mode)

    def after_update(self, roles: LanguageRoles, update: int) -> Metrics:
        every = self.kl.refresh_every if self.kl else None
        if every is None or update % every:
            return {}
        roles.refresh_reference()
        return {"actor/reference_refreshed": 1.0}


def _reported(answered: ScoredResponses, rewards: TokenRewards, advantage: Tensor, returns: Tensor) -> Metrics:
    """verl's names: scores are what was judged, rewards what is left of it after shaping and KL."""
    judged, mask = ~rewards.missing, rewards.mask
    return spread_metrics(
        score=answered.scores.reward[judged],
        rewards=rewards.outcome[judged],
        advantages=advantage[mask],
        returns=returns[mask],
    )
