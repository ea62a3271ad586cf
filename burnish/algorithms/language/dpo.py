"""Preferences between responses, without a reward model: DPO (Rafailov et al. 2023, arXiv:2305.18290), and IPO, whose
margin has a target, so that certain preferences are not followed for ever (Azar et al. 2023, arXiv:2310.12036)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from burnish.algorithms.language.paired import Paired
from burnish.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@register("language algorithm", "dpo")
class DPO(Paired):
    """Prefer one response to another, more than the reference does."""

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Probability that chosen and rejected were mixed up (conservative DPO)."""

    def preferred(
        self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor
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
        self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.losses.responses import ipo

        return ipo(chosen, rejected, reference_chosen, reference_rejected, beta=self.beta)
