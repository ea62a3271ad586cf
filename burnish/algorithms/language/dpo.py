"""Preferences between responses, without a reward model: DPO (Rafailov et al. 2023, arXiv:2305.18290); IPO, whose
margin has a target, so that certain preferences are not followed for ever (Azar et al. 2023, arXiv:2310.12036); SimPO,
which needs no reference (Meng et al. 2024, arXiv:2405.14734); and MPO, a mixture of DPO with two more losses, by which
InternVL learns to reason (Wang et al. 2024, arXiv:2411.10442)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from burnish.algorithms.language.base import LanguageRoles
from burnish.algorithms.language.paired import Paired
from burnish.options import NonNegative, Positive
from burnish.registry import register
from burnish.rl.algorithm import Memory

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.responses import AnnotatedResponses
    from burnish.types.rollout import OfflineResponses, ScoredResponses


@register("language algorithm", "dpo")
class DPO(Paired):
    """Prefer one response to another, more than the reference does."""

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Probability that chosen and rejected were mixed up (conservative DPO)."""

    def preferred(
        self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, point: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.losses.responses import dpo

        return dpo(
            chosen, rejected, reference_chosen, reference_rejected,
            beta=self.beta, label_smoothing=self.label_smoothing,
        )  # fmt: skip


@register("language algorithm", "ipo")
class IPO(Paired):
    """Prefer one response to another by 1 / (2 beta) more than the reference does, and no further."""

    average_log_prob: bool = True
    """Count the mean log-prob of a response's tokens, as TRL does, instead of their sum, as the paper writes it."""

    def preferred(
        self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, point: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.losses.responses import ipo

        return ipo(chosen, rejected, reference_chosen, reference_rejected, beta=self.beta)


@register("language algorithm", "simpo")
class SimPO(Paired):
    """Prefer one response to another by its likelihood per token, and by a margin at least; there is no reference."""

    beta: Positive = 2.0
    """Scale of the reward, which is the mean log-prob of a response's tokens."""
    target_margin: NonNegative = 1.0
    """By which the reward of the chosen response is to be ahead; the paper takes 0.3 to 0.8 of beta."""
    reference_free: bool = True
    """Always: rewards are compared with no reference."""
    average_log_prob: bool = True
    """Always: the reward is a mean, so that length counts for nothing."""

    @model_validator(mode="after")
    def _is_simpo(self) -> Self:
        if not (self.reference_free and self.average_log_prob):
            raise ValueError("simpo is reference_free and has average_log_prob: leave both out, or take dpo")
        return self

    def preferred(
        self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, point: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.losses.responses import simpo

        return simpo(chosen, rejected, beta=self.beta, margin=self.target_margin)


@register("language algorithm", "mpo")
class MPO(Paired):
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

    @model_validator(mode="after")
    def _something_is_preferred(self) -> Self:
        if self.preference_weight == self.quality_weight == 0:
            raise ValueError("preference_weight and quality_weight are 0: nothing is compared; take algorithm=sft")
        if self.reference_free and self.quality_weight:
            raise ValueError(
                "reference_free is true, but the quality loss judges by the log-ratio to the reference; leave it out, "
                "or set quality_weight to 0"
            )
        return self

    def make_memory(self) -> Memory:
        from burnish.rl.advantages import RunningMoments

        return Memory({"rewards": RunningMoments()})

    def annotate(self, collected: ScoredResponses | OfflineResponses, roles: LanguageRoles) -> AnnotatedResponses:
        from dataclasses import replace

        import torch

        from burnish.batches.responses import trace_of

        annotated = super().annotate(collected, roles)
        if not self.quality_weight:
            return annotated
        trace = trace_of(collected)
        rows = torch.cat(self._pairs(collected)) if self.online else torch.arange(len(trace))
        policy = self.response_logprobs(roles.policy, trace.select(rows), roles)
        rewards = self.beta * (policy - annotated.reference[rows])
        roles.memory["rewards"].update(rewards, torch.ones(len(rewards), dtype=torch.bool))
        return replace(annotated, point=float(roles.memory["rewards"].known.mean))

    def preferred(
        self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, point: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.losses.responses import bco, dpo

        given = (chosen, rejected, reference_chosen, reference_rejected)
        preference, values = dpo(*given, beta=self.beta)
        quality = bco(*given, beta=self.beta, shift=point)
        values |= {"actor/preference_loss": preference, "actor/quality_loss": quality}
        return self.preference_weight * preference + self.quality_weight * quality, values
