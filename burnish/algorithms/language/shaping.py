"""What a response has earned: its reward, scaled and bounded, minus what its length and its KL cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from burnish.algorithms.base import Metrics, clip_range
from burnish.algorithms.language.base import LanguageAlgorithm
from burnish.algorithms.language.kl import TokenKl
from burnish.options import Count, Finite, Positive
from burnish.registry import options

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import AnnotatedTokens, TokenRewards
    from burnish.types.rollout import ScoredResponses


@options
class Overlong:
    """DAPO's soft penalty of responses that come near the limit."""

    buffer: Count
    """Tokens before rollout.max_new_tokens over which the penalty grows in a line."""
    factor: Positive = 1.0
    """The penalty at the limit."""


@options
class RewardShaping(LanguageAlgorithm):
    """Options of what happens to rewards before anything is compared: length, scale, bounds and KL, in this order."""

    overlong: Overlong | None = None
    """Take something off the reward of responses that come near the limit; null takes nothing."""
    reward_norm: bool = False
    """Bring rewards to mean 0 and spread 1, by the statistics of all of the run so far."""
    reward_clip: Positive | None = None
    """Rewards count within +- this; null never clips."""
    reward_clip_low: Finite | None = None
    """Smallest reward if the lower bound is to be another; null takes -reward_clip."""
    kl: TokenKl | None = None
    """What it costs to leave the reference; null costs nothing and needs no reference."""

    @model_validator(mode="after")
    def _rewards_have_a_range(self) -> Self:
        clip_range("reward_clip", self.reward_clip_low, self.reward_clip)
        return self

    def complaints(self, samples: int, longest: int) -> Iterator[str]:
        if self.overlong is not None and self.overlong.buffer >= longest:
            yield (
                f"algorithm.overlong.buffer is {self.overlong.buffer}, but rollout.max_new_tokens is {longest}: every "
                "response would be punished; make it smaller"
            )
        if self.kl is not None and self.kl.target is not None and samples >= 5 * self.kl.horizon:
            yield (
                f"algorithm.kl.horizon is {self.kl.horizon:g} with {samples} responses per update: one step could "
                f"make the coefficient negative; set it above {samples // 5}"
            )

    def make_memory(self) -> Any:
        from burnish.advantages import RunningMoments
        from burnish.algorithms.language.memory import Memory

        parts: dict[str, Any] = {"rewards": RunningMoments()} if self.reward_norm else {}
        return Memory(parts | ({"kl": self.kl.make_controller()} if self.kl else {}))

    def shape(self, annotated: AnnotatedTokens) -> tuple[TokenRewards, float, Metrics]:
        """What responses earned, the coefficient of a KL in the loss, and what there is to report.

        The memory takes in this batch: what it knew before decides the KL's weight, and what it knows then how
        rewards are scaled.
        """
        import torch

        from burnish.batches.tokens import TokenRewards

        answered, trace = annotated.answered, annotated.answered.trace
        missing = answered.scores.missing
        if self.needs().greedy:
            missing = missing | answered.greedy.isnan()
        mask = trace.mask & ~missing[:, None]
        reward, greedy, metrics = self._scaled(annotated, missing)
        penalty, coef, measured = self._penalty(annotated, mask)
        tokens = self.placed(answered, torch.where(missing, 0.0, reward), mask) - penalty
        rewards = TokenRewards(
            outcome=reward - penalty.sum(1),
            tokens=tokens,
            greedy=greedy,
            group=answered.group,
            missing=missing,
            mask=mask,
            value=annotated.value,
        )
        return rewards, coef, metrics | measured

    def measured(self, annotated: AnnotatedTokens) -> bool:
        """Whether the KL is known before the policy learns."""
        return self.kl is not None and annotated.compared.shape == annotated.reference.shape

    def placed(self, answered: ScoredResponses, reward: Tensor, mask: Tensor) -> Tensor:
        """Rewards [B] of responses on their tokens, [B, T]."""
        from burnish.advantages import place_reward

        return place_reward(reward, mask)

    def _scaled(self, annotated: AnnotatedTokens, missing: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        """Rewards of the responses and of the greedy ones, [B] each, by the options of scale."""
        from burnish.advantages import clip_values, overlong_penalty

        answered, metrics = annotated.answered, {}
        reward, greedy = answered.scores.reward.float(), answered.greedy.float()
        if self.overlong is not None:
            length = answered.trace.mask.sum(1)
            penalty = overlong_penalty(
                length, max_length=answered.limit, buffer=self.overlong.buffer, factor=self.overlong.factor
            )
            reward = reward + penalty
            metrics["critic/overlong_penalty/mean"] = float(penalty.mean())
            metrics["critic/overlong_penalty/ratio"] = float((penalty < 0).float().mean())
        if self.reward_norm:
            statistics = annotated.memory["rewards"]
            statistics.update(reward, ~missing)
            reward, greedy = statistics.normalise(reward), statistics.normalise(greedy)
            metrics["critic/reward_norm/mean"] = statistics.known.mean
            metrics["critic/reward_norm/std"] = statistics.known.std(unbiased=True)
        if self.reward_clip is not None or self.reward_clip_low is not None:
            low, high = clip_range("reward_clip", self.reward_clip_low, self.reward_clip)
            reward, share = clip_values(reward, low, high, ~missing)
            greedy = greedy.clamp(low, high)
            metrics["critic/rewards/clip_ratio"] = share
        return reward.masked_fill(missing, 0.0), greedy, metrics

    def _penalty(self, annotated: AnnotatedTokens, mask: Tensor) -> tuple[Tensor, float, Metrics]:
        """What the KL takes off each token [B, T], its coefficient in the loss, and the controller's step."""
        import torch

        from burnish.losses.tokens import kl_estimate

        nothing = torch.zeros(mask.shape)
        if self.kl is None:
            return nothing, 0.0, {}
        controller = annotated.memory["kl"]
        coef = controller.coef
        metrics = {"actor/kl_coef": coef}
        if not self.measured(annotated):
            return nothing, coef, metrics
        estimate = kl_estimate(annotated.compared, annotated.reference, mask, self.kl.value_kind)
        rows = mask.any(1)
        if bool(rows.any()):
            current = float(estimate.sum(1)[rows].mean())
            controller.update(current, len(mask))
            metrics |= {
                "actor/kl_per_response": current,
                "actor/reward_kl_penalty": float(estimate.sum() / mask.sum()),
            }
        if self.kl.route == "reward":
            return coef * estimate, 0.0, metrics
        metrics.pop("actor/reward_kl_penalty", None)
        return nothing, coef, metrics
