"""PPO with a critic (Schulman et al. 2017, arXiv:1707.06347; for language Ouyang et al. 2022, arXiv:2203.02155)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from burnish.algorithms.base import Metrics
from burnish.algorithms.language.base import LanguageNeeds, LanguageRoles
from burnish.algorithms.language.ratio import Clipped
from burnish.algorithms.language.turns import TurnRewards
from burnish.options import Fraction, Positive
from burnish.registry import options, register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import AnnotatedTokens, TokenBatch, TokenRewards
    from burnish.types.rollout import Loss


@register("language algorithm", "ppo")
@options
class PPO(TurnRewards, Clipped):
    """Clipped policy gradient over tokens, whose advantages a critic estimates (GAE)."""

    gamma: Fraction = 1.0
    """Discount of rewards per token."""
    lam: Fraction = 0.95
    """GAE: 1 takes rewards as they came, 0 the critic's word for all but the next one."""
    whiten: bool = True
    """Bring the advantages of an update to mean 0 and spread 1, over all tokens."""
    value_clip: Positive | None = 0.2
    """How far a value may move from the one before the update and still count as learned; null sets no bound."""
    value_coef: Positive = 1.0
    """Weight of the value loss, against the policy loss and against the bound of the gradient of the critic."""

    def needs(self) -> LanguageNeeds:
        return replace(super().needs(), critic=True)

    def advantages(self, rewards: TokenRewards) -> tuple[Tensor, Tensor]:
        from burnish.advantages import gae, whiten

        advantage, returns = gae(rewards.tokens, rewards.value, rewards.mask, gamma=self.gamma, lam=self.lam)
        return (whiten(advantage, rewards.mask, unbiased=True) if self.whiten else advantage), returns

    def credit(self, annotated: AnnotatedTokens) -> tuple[TokenBatch, Metrics]:
        from burnish.algorithms.base import spread_metrics

        learned, metrics = super().credit(annotated)
        values, returns = learned.value[learned.mask].double(), learned.returns[learned.mask].double()
        metrics |= spread_metrics(values=values)
        spread = float(returns.var(correction=0)) if len(returns) else 0.0
        if spread > 0:
            metrics["critic/vf_explained_var"] = 1 - float((returns - values).var(correction=0)) / spread
        return learned, metrics

    def loss(self, part: TokenBatch, roles: LanguageRoles) -> Loss:
        from burnish.types.rollout import Loss

        if roles.frozen(part.update):
            return self._value_loss(part, roles.values(part.trace))
        scores, value = roles.scores_and_values(part.trace)
        actor, critic = self.policy_loss(part, scores, roles), self._value_loss(part, value)
        return Loss(actor.total + critic.total, actor.metrics | critic.metrics)

    def _value_loss(self, part: TokenBatch, value: Tensor) -> Loss:
        from burnish.losses.tokens import masked, terms, value_loss
        from burnish.types.rollout import Loss

        loss, values = value_loss(value, part.value, part.returns, part.mask, clip=self.value_clip)
        tokens, total = part.mask.sum(), self._total(loss, part)
        values["critic/vpred_mean"] = masked(value, part.mask)
        metrics: dict[str, Any] = {name: (one.detach().sum(), tokens) for name, one in values.items()}
        size = terms(part.mask, self.loss_agg_mode)
        return Loss(self.value_coef * total, metrics | {"critic/vf_loss": (total.detach(), size)})
