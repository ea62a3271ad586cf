"""ReMax: the greedy response is the baseline (Li et al. 2023, arXiv:2310.10505)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from burnish.algorithms.language.base import LanguageNeeds
from burnish.algorithms.language.ratio import Clipped
from burnish.registry import options, register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import TokenRewards


@register("language algorithm", "remax")
@options
class ReMax(Clipped):
    """Reward minus that of the greedy response to the same prompt: one more response per prompt, no group needed."""

    @model_validator(mode="after")
    def _baseline_is_comparable(self) -> Self:
        if self.overlong is not None:
            raise ValueError(
                "overlong is set, but the greedy response that remax compares with is judged by its reward alone; "
                "leave overlong out"
            )
        return self

    def needs(self) -> LanguageNeeds:
        return replace(super().needs(), greedy=True)

    def advantages(self, rewards: TokenRewards) -> tuple[Tensor, Tensor]:
        from burnish.advantages import returns
        from burnish.losses.tokens import masked

        found = returns(rewards.tokens, rewards.mask, gamma=1.0)
        return masked(found - rewards.greedy[:, None], rewards.mask), found
