"""What losses on pairs of responses have in common: a chosen one is preferred to a rejected one."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from burnish.language.algorithms.base import LanguageNeeds
from burnish.language.algorithms.sft import ReferenceAlgorithm
from burnish.options import Finite, NonNegative, Positive, Rules
from burnish.registry import ReadIf, options, register
from burnish.rl.algorithm import Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.batches import ResponseBatch
    from burnish.language.config import LanguageConfig
    from burnish.language.roles import LanguageRoles
    from burnish.types.rollout import Loss, OfflineResponses, ScoredResponses


@options
class Paired(ReferenceAlgorithm):
    """Base of losses on the margin by which the chosen response is ahead of the rejected one.

    Likelihoods are compared per token and with no reference, where no option of a subclass says otherwise.
    """

    reference_free = True

    online: bool = True
    """Compare the best and the worst of the own responses to a prompt; false learns from the pairs in
    data.train_files."""
    rpo_alpha: NonNegative = 0.0
    """Weight of the chosen response's negative log-likelihood per token, which keeps it from becoming less likely
    together with the rejected one (RPO)."""

    def needs(self) -> LanguageNeeds:
        return LanguageNeeds(
            data="prompts" if self.online else "preferences", reference=not self.reference_free, groups=self.online,
            atom="pair",
        )  # fmt: skip

    @abstractmethod
    def preferred(self, won: Tensor, lost: Tensor, point: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each pair and what else it reports, [P] each.

        Args:
            won, lost: [P] log pi - log pi_ref of the chosen and of the rejected responses.
            point: [P] what rewards are measured from, where ``compute_logprobs`` has found one.
        """

    def sampled_rows(self, scored: ScoredResponses) -> tuple[Tensor, Tensor]:
        import torch

        from burnish.rl.preference import pairs

        scores = scored.scores
        rows = torch.stack(pairs(scores.reward, scored.group, scores.missing), 1)
        return rows, rows[:, 0] >= 0

    def compute_logprobs(self, collected: ScoredResponses | OfflineResponses, roles: LanguageRoles) -> ResponseBatch:
        from dataclasses import replace

        batch = self.learned(collected)
        if self.reference_free:
            return batch
        with roles.clock("ref"):
            logprob = self.response_logprobs(roles.reference, batch.answers.trace, roles)
        return replace(batch, reference=logprob.view(-1, 2))

    def reported(self, batch: ResponseBatch) -> Metrics:
        metrics = {"train/pairs": float(len(batch))}
        if self.online and len(batch):
            chosen, rejected = batch.reward.unbind(1)
            metrics["train/pair_margin"] = float((chosen - rejected).mean())
        return metrics

    def loss(self, part: ResponseBatch, roles: LanguageRoles) -> Loss:
        from burnish.language.losses import implicit_rewards
        from burnish.rl.surrogates import sequence_mean
        from burnish.types.batch import to_device
        from burnish.types.rollout import Loss

        trace = part.answers.trace
        logprob = roles.policy(trace).logprob
        mask = to_device(trace.mask, logprob.device)
        whole = self.response_logprob(logprob, mask).view(-1, 2)
        won, lost = (whole - part.reference).unbind(1)
        loss, values = self.preferred(won, lost, part.point)
        values |= implicit_rewards(won, lost, beta=self.beta)
        values |= {f"actor/{self.name}_loss": loss, "logps/chosen": whole[:, 0], "logps/rejected": whole[:, 1]}
        if self.rpo_alpha > 0:
            unlikely = -sequence_mean(logprob[::2], mask[::2])
            values["actor/nll_loss"] = unlikely
            loss = loss + self.rpo_alpha * unlikely
        return Loss(loss.sum(), {name: (value.detach().sum(), len(value)) for name, value in values.items()})


@options
class Referenced(Paired):
    """Base of those that compare with a reference."""

    reference_free: bool = False
    """Compare with a reference that finds all responses equally likely, which saves its forward passes."""
    average_log_prob: bool = False
    """Count the mean log-prob of a response's tokens instead of their sum, so that length counts for nothing."""


@register("language algorithm", "dpo")
class DPO(Referenced):
    """Prefer one response to another, more than the reference does."""

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Probability that chosen and rejected were mixed up (conservative DPO)."""

    def preferred(self, won: Tensor, lost: Tensor, point: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.rl.preference import preference_loss

        return preference_loss(won - lost, beta=self.beta, label_smoothing=self.label_smoothing), {}


@register("language algorithm", "ipo")
class IPO(Referenced):
    """Prefer one response to another by 1 / (2 beta) more than the reference does, and no further."""

    average_log_prob: bool = True
    """Count the mean log-prob of a response's tokens, as TRL does, instead of their sum, as the paper writes it."""

    def preferred(self, won: Tensor, lost: Tensor, point: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.rl.preference import preference_loss

        return preference_loss(won - lost, beta=self.beta, kind="ipo"), {}


@register("language algorithm", "simpo")
class SimPO(Paired):
    """Prefer one response to another by its likelihood per token, and by a margin at least; there is no reference."""

    beta: Positive = 2.0
    """Scale of the reward, which is the mean log-prob of a response's tokens."""
    target_margin: NonNegative = 1.0
    """By which the reward of the chosen response is to be ahead; the paper takes 0.3 to 0.8 of beta."""

    def preferred(self, won: Tensor, lost: Tensor, point: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.language.losses import simpo

        return simpo(won, lost, beta=self.beta, margin=self.target_margin), {}


@register("language algorithm", "orpo")
class ORPO(Paired):
    """Imitate the chosen response, and prefer it to the rejected one by the ratio of their odds; there is no reference
    (Hong et al. 2024, arXiv:2403.07691)."""

    beta: Positive = 0.1
    """Weight of the odds ratio's loss, the paper's lambda; it takes 0.1 and 0.2."""
    rpo_alpha: NonNegative = 1.0
    """Weight of the chosen response's negative log-likelihood per token, which is 1 in the paper."""

    def preferred(self, won: Tensor, lost: Tensor, point: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.language.losses import log_odds_ratio, orpo

        return self.beta * orpo(won, lost), {"actor/log_odds_ratio": log_odds_ratio(won, lost)}


@register("language algorithm", "mpo")
class MPO(Referenced):
    """Prefer one response to another (DPO), tell each of them to be good or bad (BCO), and imitate the chosen one.

    L = preference_weight L_DPO + quality_weight L_BCO + rpo_alpha L_SFT, where the shift of BCO is the mean of all
    implicit rewards of the run so far.
    """

    preference_weight: NonNegative = 0.8
    """Weight of DPO's loss."""
    quality_weight: NonNegative = 0.2
    """Weight of BCO's loss."""
    rpo_alpha: NonNegative = 1.0
    """Weight of the chosen response's negative log-likelihood per token."""

    def contradictions(self, run: LanguageConfig) -> Rules:
        return [
            (
                self.preference_weight == self.quality_weight == 0,
                "preference_weight and quality_weight are 0: nothing is compared; take algorithm=sft",
            ),
            (
                self.reference_free and self.quality_weight,
                "reference_free is true, but the quality loss judges by the log-ratio to the reference; remove it, "
                "or set quality_weight to 0",
            ),
        ]

    def make_memory(self) -> dict[str, Any]:
        from burnish.rl.advantages import RunningMoments

        return {"rewards": RunningMoments()}

    def compute_logprobs(self, collected: ScoredResponses | OfflineResponses, roles: LanguageRoles) -> ResponseBatch:
        from dataclasses import replace

        import torch

        batch = super().compute_logprobs(collected, roles)
        if not self.quality_weight:
            return batch
        logprob = self.response_logprobs(roles.policy, batch.answers.trace, roles).view(-1, 2)
        rewards = self.beta * (logprob - batch.reference)
        rewards = (rewards.T if self.online else rewards).flatten()
        roles.memory["rewards"].update(rewards, torch.ones(len(rewards), dtype=torch.bool))
        return replace(batch, point=torch.full(batch.point.shape, float(roles.memory["rewards"].known.mean)))

    def preferred(self, won: Tensor, lost: Tensor, point: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.language.losses import bco
        from burnish.rl.preference import preference_loss

        preference = preference_loss(won - lost, beta=self.beta)
        quality = bco(won, lost, beta=self.beta, shift=point)
        loss = self.preference_weight * preference + self.quality_weight * quality
        return loss, {"actor/preference_loss": preference, "actor/quality_loss": quality}


@register("language algorithm", "kto")
class KTO(ReferenceAlgorithm):
    """Raise good responses and lower bad ones, each by itself, as seen from how far the policy has moved anyway."""

    online: bool = True
    """Learn from own responses, which their rewards make good or bad; false learns from the judged ones in
    data.train_files."""
    average_log_prob: bool = False
    """Count the mean log-prob of a response's tokens instead of their sum, so that length counts for nothing."""
    threshold: Annotated[Finite | None, ReadIf("online")] = None
    """online: from this reward on a response is good, below it is bad; null takes the mean of the responses to the
    prompt, and leaves out those that are at it."""
    desirable_weight: Positive = 1.0
    """Weight of good responses."""
    undesirable_weight: Positive = 1.0
    """Weight of bad responses; the two should make up for unequal numbers."""
    reference_point: Literal["mismatched", "opposite", "zero"] = "mismatched"
    """What implicit rewards are measured from, estimated before each update: the KL to the reference at responses that
    belong to other prompts; for good responses that at bad ones and the other way round, as LightRFT has it; or
    nothing, which saves those forward passes."""

    def needs(self) -> LanguageNeeds:
        return LanguageNeeds(
            data="prompts" if self.online else "judgements", reference=True,
            groups=self.online and self.threshold is None,
        )  # fmt: skip

    def sampled_rows(self, scored: ScoredResponses) -> tuple[Tensor, Tensor]:
        from burnish.rl.advantages import group_statistics

        scores = scored.scores
        if self.threshold is not None:
            rows = (~scores.missing).nonzero()
            return rows, scores.reward[rows[:, 0]] >= self.threshold
        groups = group_statistics(scores.reward, scored.group, scores.missing)
        ahead = scores.reward.double() - groups.mean[groups.label]
        rows = (~scores.missing & ~groups.constant[groups.label] & (ahead != 0)).nonzero()
        return rows, ahead[rows[:, 0]] > 0

    def compute_logprobs(self, collected: ScoredResponses | OfflineResponses, roles: LanguageRoles) -> ResponseBatch:
        from dataclasses import replace

        import torch

        from burnish.language.batches import mismatched
        from burnish.language.losses import kto_reference_point

        batch = self.learned(collected)
        trace, good, point = batch.answers.trace, batch.good, batch.point
        with roles.clock("ref"):
            reference = self.response_logprobs(roles.reference, trace, roles)
        if self.reference_point == "opposite":
            drift = self.response_logprobs(roles.policy, trace, roles) - reference
            point = torch.where(good, kto_reference_point(drift[~good]), kto_reference_point(drift[good]))
        if self.reference_point == "mismatched":
            others = mismatched(trace)
            policy, base = (self.response_logprobs(role, others, roles) for role in (roles.policy, roles.reference))
            point = kto_reference_point(policy - base).expand(len(good))
        return replace(batch, reference=reference[:, None], point=point)

    def reported(self, batch: ResponseBatch) -> Metrics:
        metrics = {"train/judged": float(len(batch)), "actor/reference_point": 0.0}
        if len(batch):
            metrics["actor/reference_point"] = float(batch.point.mean())
            metrics["train/desirable_ratio"] = float(batch.good.float().mean())
        return metrics

    def loss(self, part: ResponseBatch, roles: LanguageRoles) -> Loss:
        import torch

        from burnish.language.losses import kto
        from burnish.types.batch import to_device
        from burnish.types.rollout import Loss

        trace = part.answers.trace
        logprob = roles.policy(trace).logprob
        logprob = self.response_logprob(logprob, to_device(trace.mask, logprob.device))
        loss, values = kto(
            logprob, part.reference[:, 0], part.good, part.point,
            beta=self.beta, desirable_weight=self.desirable_weight, undesirable_weight=self.undesirable_weight,
        )  # fmt: skip
        values |= {
            "actor/kto_loss": loss.detach(),
            "logps/chosen": torch.where(part.good, logprob.detach(), torch.nan),
            "logps/rejected": torch.where(part.good, torch.nan, logprob.detach()),
        }
        return Loss(loss.sum(), {name: (value.nansum(), (~value.isnan()).sum()) for name, value in values.items()})
