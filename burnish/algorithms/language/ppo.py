"""PPO with a value network (Schulman et al. 2017, arXiv:1707.06347; Ouyang et al. 2022, arXiv:2203.02155)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from burnish.algorithms.language.base import LanguageRoles
from burnish.algorithms.language.policy_gradient import TokenPolicyGradient
from burnish.options import Positive
from burnish.registry import register
from burnish.rl.algorithm import Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import AnnotatedTokens, TokenBatch
    from burnish.types.rollout import Loss


@register("language algorithm", "ppo")
class PPO(TokenPolicyGradient, advantage="gae", surrogate="clip"):
    """Clipped policy gradient over tokens, whose advantages a value network estimates (GAE)."""

    learns_values: ClassVar[bool] = True

    value_clip: Positive | None = 0.2
    """How far a value may move from the one before the update and still count as learned; null sets no bound."""
    value_coef: Positive = 1.0
    """Weight of the value loss, against the policy loss and against the clip of the value network's gradient norm."""

    def credit(self, annotated: AnnotatedTokens) -> tuple[TokenBatch, Metrics]:
        from burnish.rl.algorithm import range_metrics

        batch, metrics = super().credit(annotated)
        values, returns = batch.value[batch.mask].double(), batch.returns[batch.mask].double()
        metrics |= range_metrics(values=values)
        variance = float(returns.var(correction=0)) if len(returns) else 0.0
        if variance > 0:
            metrics["critic/vf_explained_var"] = 1 - float((returns - values).var(correction=0)) / variance
        return batch, metrics

    def loss(self, part: TokenBatch, roles: LanguageRoles) -> Loss:
        from burnish.types.rollout import Loss

        if roles.frozen(part.update):
            return self._value_loss(part, roles.values(part.trace))
        scores, value = roles.scores_and_values(part.trace)
        actor, critic = self.policy_loss(part, scores, roles), self._value_loss(part, value)
        return Loss(actor.total + critic.total, actor.metrics | critic.metrics)

    def _value_loss(self, part: TokenBatch, value: Tensor) -> Loss:
        from burnish.losses.value import value_loss
        from burnish.rl.surrogates import masked, terms
        from burnish.types.rollout import Loss

        loss, values = value_loss(value, part.value, part.returns, part.mask, clip=self.value_clip)
        tokens, total = part.mask.sum(), self.total(loss, part)
        values["critic/vpred_mean"] = masked(value, part.mask)
        metrics: dict[str, Any] = {name: (one.detach().sum(), tokens) for name, one in values.items()}
        size = terms(part.mask, self.loss_agg_mode)
        return Loss(self.value_coef * total, metrics | {"critic/vf_loss": (total.detach(), size)})
