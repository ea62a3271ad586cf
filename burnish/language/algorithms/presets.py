"""The policy gradients over tokens that only choose among parts: an advantage, a surrogate, and how tokens are summed.

| algorithm | advantage | surrogate | tokens are averaged |
| --- | --- | --- | --- |
| grpo | group | clip | within their response |
| dapo | group | clip, wider above | over the batch |
| dr_grpo | centred | clip | over a constant length |
| gspo | group | gspo | within their response |
| gmpo | group | gmpo | within their response |
| cispo | group | cispo | over the batch |
| sapo | group | sapo | within their response |
| cpgd | cpgd | cpgd | over the batch |
| rloo | leave_one_out | clip | over the batch |
| remax | greedy_baseline | clip | over the batch |
| reinforce | returns | reinforce | over the batch |
| reinforce_plus_plus | returns | clip | over the batch |
| reinforce_plus_plus_baseline | whitened_group | clip | over the batch |
| gdpo | group, of each reward | clip | within their response |
| opo | optimal_baseline | clip | over the batch |
| pass_at_k | pass_at_k | clip | over the batch |
| dppo | group | dppo | over the batch |
| drpo | group | drpo | over the batch |
| chord | group | clip | over the batch, beside imitation |

GRPO stands in ``policy_gradient``; Clip-Cov, KL-Cov and PPO, which trains a value network as well, at the end.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from burnish.language.algorithms.base import LanguageNeeds, TokenWeighting
from burnish.language.algorithms.policy_gradient import GRPO, Aggregation, Share, TokenPolicyGradient
from burnish.options import Finite, Positive, Rules, Whole
from burnish.registry import options, register
from burnish.rl.algorithm import Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.batches import AnnotatedTokens, TokenBatch
    from burnish.language.config import LanguageConfig
    from burnish.language.roles import LanguageRoles
    from burnish.types.rollout import Loss


@register("language algorithm", "dapo")
class DAPO(GRPO):
    """GRPO with more room above a ratio of 1 than below, in which every token counts alike (Yu et al. 2025,
    arXiv:2503.14476). Its dynamic sampling is rollout.filter_groups, its penalty of long responses overlong."""

    clip_high: Positive | None = 0.28
    """Upper clip range, wider so that unlikely tokens can grow; null takes clip."""
    loss_agg_mode: Aggregation = "token-mean"
    """How the losses of tokens become one; counted alike, tokens of long responses have their full say."""


@register("language algorithm", "dr_grpo")
class DrGRPO(TokenPolicyGradient, advantage="centred", surrogate="clip"):
    """GRPO without its biases of length and difficulty: advantages are not divided by a std, and sums of tokens are
    divided by a constant length (Liu et al. 2025, arXiv:2503.20783)."""

    loss_agg_mode: Aggregation = "seq-mean-token-sum-norm"
    """How the losses of tokens become one; divided by a constant, long wrong responses weigh no less per token."""


@register("language algorithm", "gspo")
class GSPO(TokenPolicyGradient, advantage="group", surrogate="gspo"):
    """GRPO whose ratio is that of the whole response, per token, clipped as one (Zheng et al. 2025,
    arXiv:2507.18071)."""

    loss_agg_mode: Aggregation = "seq-mean-token-mean"
    """How the losses of tokens become one; all tokens of a response share its ratio, so it counts as one."""


@register("language algorithm", "gmpo")
class GMPO(TokenPolicyGradient, advantage="group", surrogate="gmpo"):
    """GRPO with the geometric mean of token ratios, which outliers move less than the arithmetic one (Zhao et al.
    2025, arXiv:2507.20673)."""

    loss_agg_mode: Aggregation = "seq-mean-token-mean"
    """How the losses of tokens become one; all tokens of a response share its loss, so it counts as one."""


@register("language algorithm", "cispo")
class CISPO(TokenPolicyGradient, advantage="group", surrogate="cispo"):
    """Policy gradient with clipped importance weights: no token loses its gradient (MiniMax 2025,
    arXiv:2506.13585)."""


@register("language algorithm", "sapo")
class SAPO(TokenPolicyGradient, advantage="group", surrogate="sapo"):
    """GRPO with a soft gate, which closes as a ratio moves away from 1, in place of clipping (Gao et al. 2025,
    arXiv:2511.20347)."""

    loss_agg_mode: Aggregation = "seq-mean-token-mean"
    """How the losses of tokens become one; the paper counts every response alike."""


@register("language algorithm", "cpgd")
class CPGD(TokenPolicyGradient, advantage="cpgd", surrogate="cpgd"):
    """Policy gradient in log-probs, which no ratio multiplies, so that ratios far from 1 can't blow it up (Liu et al.
    2025, arXiv:2505.12504)."""


@register("language algorithm", "rloo")
class RLOO(TokenPolicyGradient, advantage="leave_one_out", surrogate="clip"):
    """Leave-one-out baseline. While it takes one step per update, nothing is clipped and it is REINFORCE (Ahmadian et
    al. 2024, arXiv:2402.14740)."""


@register("language algorithm", "remax")
class ReMax(TokenPolicyGradient, advantage="greedy_baseline", surrogate="clip"):
    """Reward minus that of the greedy response to the same prompt: one more response per prompt, no group needed (Li
    et al. 2023, arXiv:2310.10505)."""


@register("language algorithm", "reinforce")
class Reinforce(TokenPolicyGradient, advantage="returns", surrogate="reinforce"):
    """Log-prob times return (Williams 1992). Nothing is clipped, so it is meant for one optimizer step per update."""


@register("language algorithm", "reinforce_plus_plus")
class ReinforcePlusPlus(TokenPolicyGradient, advantage="returns", surrogate="clip"):
    """PPO's surrogate on discounted returns, whitened over the batch: no value network and no groups. The paper takes
    a KL off the rewards: kl.route=reward (Hu 2025, arXiv:2501.03262)."""


@register("language algorithm", "reinforce_plus_plus_baseline")
class ReinforcePlusPlusBaseline(TokenPolicyGradient, advantage="whitened_group", surrogate="clip"):
    """Reward minus the mean of the group, whitened over the batch. The paper adds a KL with kl.kind=k2 to the loss (Hu
    2025, arXiv:2501.03262)."""


@register("language algorithm", "gdpo")
class GDPO(GRPO):
    """GRPO for several rewards: each is compared within its group by itself, and the weighted sum of these advantages
    is brought to mean 0 and std 1 over the update, so that no reward drowns another (Liu et al. 2026,
    arXiv:2601.05242)."""

    advantage_aggregation: Literal["sum", "each", "gdpo"] = "gdpo"
    """Several rewards: gdpo: an advantage of each, their weighted sum, and that whitened; each: without whitening; sum:
    one advantage of their weighted sum, which is GRPO."""


@register("language algorithm", "opo")
class OPO(TokenPolicyGradient, advantage="optimal_baseline", surrogate="clip"):
    """Reward minus the baseline of least variance, in which long responses weigh more; no std, no KL, no entropy bonus.
    Meant for one optimizer step per update (Hao et al. 2025, arXiv:2505.23585)."""


@register("language algorithm", "pass_at_k")
class PassAtKTraining(TokenPolicyGradient, advantage="pass_at_k", surrogate="clip"):
    """Trains the chance that one of k responses is right, which keeps several ways of answering alive; a run that
    sharpens may follow (Chen et al. 2025, arXiv:2508.10751)."""


@options
class AroundSampler(TokenPolicyGradient):
    """Base of those whose trust region is around the policy that sampled."""

    old_logprob: Literal["auto", "sampler", "recompute"] = "auto"
    """Log-probs that ratios refer to: the sampler's with auto, since the paper's trust region is around the policy that
    sampled, or recomputed ones. With rollout_correction, its mode decides."""

    @property
    def bypasses(self) -> bool:
        return super().bypasses or (self.rollout_correction is None and self.old_logprob == "auto")


@register("language algorithm", "dppo")
class DPPO(AroundSampler, advantage="group", surrogate="dppo"):
    """Policy gradient within a trust region of probabilities: tokens whose probability has moved too far from the
    sampler's, and would move on, are left out, however their ratio stands (Qi et al. 2026, arXiv:2602.04879)."""


@register("language algorithm", "drpo")
class DRPO(AroundSampler, advantage="group", surrogate="drpo"):
    """DPPO with a slope in place of an edge: tokens count less the further their probability has moved from the
    sampler's, and are pulled back beyond the limit (Yao et al. 2026, arXiv:2606.09821)."""


MU_VALLEY = 0.05  # what CHORD's share of imitation falls to


@register("language algorithm", "chord")
class CHORD(GRPO):
    """GRPO and the imitation of experts in one loss, (1 - mu) GRPO + mu SFT, in which mu falls and unsure tokens count
    most (Zhang et al. 2025, arXiv:2508.11408). Experts' responses are supervised.train_files.

    With a constant mu and weighting=phi it is CHORD-phi, with a decay and weighting=equal CHORD-mu.
    """

    loss_agg_mode: Aggregation = "token-mean"
    """How the losses of tokens become one; the authors' code counts every token alike."""
    weighting: TokenWeighting = "phi"
    """Weight of an expert's token with probability p: equal: 1; probability: p (DFT); phi: p (1 - p)."""
    mu_decay: Whole = 0
    """Updates over which mu, the share of imitation, falls from supervised.coef to 0.05, along half a cosine; 0 keeps
    it."""

    def needs(self) -> LanguageNeeds:
        from dataclasses import replace

        return replace(super().needs(), imitates=self.weighting)

    def shares(self, update: int, coef: float) -> tuple[float, float]:
        done = min((update - 1) / self.mu_decay, 1.0) if self.mu_decay else 0.0
        mu = MU_VALLEY + (coef - MU_VALLEY) * (1 + math.cos(math.pi * done)) / 2
        return 1 - mu, mu


@register("language algorithm", "clip_cov")
class ClipCov(TokenPolicyGradient, advantage="group", surrogate="clip"):
    """GRPO that learns nothing from a random few of the tokens of high covariance."""

    cov_fraction: Share = 2e-4
    """Share of the tokens of an update that are left out, one at least."""
    cov_low: Finite = 1.0
    """Tokens may be left out whose covariance is above this,"""
    cov_high: Finite = 5.0
    """and below this."""

    def contradictions(self, run: LanguageConfig) -> Rules:
        message = f"cov_low is {self.cov_low:g} and cov_high is {self.cov_high:g}: nothing lies between; lower cov_low"
        return [*super().contradictions(run), (self.cov_low >= self.cov_high, message)]

    def _selected(self, annotated: AnnotatedTokens, trained: Tensor, advantage: Tensor) -> tuple[Tensor, Metrics]:
        import torch

        from burnish.language.losses import covariance
        from burnish.utils import random

        weight, metrics = super()._selected(annotated, trained, advantage)
        cov, scored = covariance(annotated.old, advantage, trained), annotated.scored
        candidates = trained & (cov > self.cov_low) & (cov < self.cov_high)
        left_out = torch.zeros_like(trained)
        if bool(candidates.any()):
            rows = zip(scored.group.tolist(), scored.sample.tolist(), strict=True)
            keys = [(scored.seed, "clip_cov", scored.update, group, sample) for group, sample in rows]
            draws = random.uniform(trained.shape[1], keys).masked_fill(~candidates, torch.inf)
            count = min(max(1, int(self.cov_fraction * int(trained.sum()))), int(candidates.sum()))
            left_out.view(-1)[draws.flatten().topk(count, largest=False).indices] = True
        metrics["actor/cov_fraction"] = float(left_out.sum() / trained.sum().clamp_min(1))
        return weight.masked_fill(left_out, 0.0), metrics


@register("language algorithm", "kl_cov")
class KLCov(TokenPolicyGradient, advantage="group", surrogate="ratio"):
    """GRPO without a clip, with a penalty for moving the log-prob of the tokens of highest covariance."""

    cov_fraction: Share = 2e-3
    """Share of the tokens of an update that are held; the paper takes 2e-3 for 7B and 2e-4 for 32B."""
    cov_coef: Positive = 1.0
    """Weight of |log pi - log pi_old| of each of them."""

    def _held(self, annotated: AnnotatedTokens, trained: Tensor, advantage: Tensor) -> Tensor:
        from burnish.language.losses import covariance, high_entropy_mask

        cov = covariance(annotated.old, advantage, trained)
        return self.cov_coef * high_entropy_mask(cov, trained, self.cov_fraction).float()


@register("language algorithm", "ppo")
class PPO(TokenPolicyGradient, advantage="gae", surrogate="clip"):
    """Clipped policy gradient over tokens, whose advantages a value network estimates (GAE)."""

    learns_values: ClassVar[bool] = True

    value_clip: Positive | None = 0.2
    """How far a value may move from the one before the update and still count as learned; null sets no bound."""
    value_coef: Positive = 1.0
    """Weight of the value loss, against the policy loss and against the clip of the value network's gradient norm."""

    def compute_advantages(self, annotated: AnnotatedTokens) -> tuple[TokenBatch, Metrics]:
        from burnish.rl.algorithm import range_metrics

        batch, metrics = super().compute_advantages(annotated)
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
        from burnish.language.losses import value_loss
        from burnish.rl.surrogates import masked, terms
        from burnish.types.rollout import Loss

        loss, values = value_loss(value, part.value, part.returns, part.mask, clip=self.value_clip)
        tokens, total = part.mask.sum(), self.total(loss, part)
        values["critic/vpred_mean"] = masked(value, part.mask)
        metrics: dict[str, Any] = {name: (one.detach().sum(), tokens) for name, one in values.items()}
        size = terms(part.mask, self.loss_agg_mode)
        return Loss(self.value_coef * total, metrics | {"critic/vf_loss": (total.detach(), size)})
