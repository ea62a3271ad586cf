"""Policy gradients that compare the policy with the one that sampled, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from burnish.algorithms.language.annotation import Passes
from burnish.algorithms.language.base import LanguageRoles
from burnish.algorithms.language.policy_gradient import TokenPolicyGradient
from burnish.options import Positive
from burnish.registry import options

if TYPE_CHECKING:
    from torch import Tensor


@options
class WithRatio(TokenPolicyGradient):
    """Base of losses that refer to old log-probs."""

    old_logprob: Literal["auto", "sampler", "recompute"] = "auto"
    """Log-probs that ratios refer to: the sampler's, recomputed, or auto: the policy's own until it is stepped, then
    the sampler's if a check shows that they are the trainer's, else recomputed."""

    @model_validator(mode="after")
    def _one_old_policy(self) -> Self:
        mode = self.rollout_correction.mode if self.rollout_correction else None
        if (mode, self.old_logprob) in (("decoupled", "sampler"), ("bypass", "recompute")):
            raise ValueError(
                f"old_logprob is {self.old_logprob} and rollout_correction.mode is {mode}: decoupled refers to "
                "recomputed log-probs and bypass to the sampler's; leave old_logprob out"
            )
        return self

    @property
    def _tolerance(self) -> float:
        """A difference of log-probs that can't be seen in the loss."""
        return 1e-3

    @property
    def _bypasses(self) -> bool:
        """Whether ratios refer to the sampler, whatever the policy makes of its tokens."""
        return self.rollout_correction is not None and self.rollout_correction.mode == "bypass"

    def _is_old(self, roles: LanguageRoles) -> bool:
        return self.old_logprob == "auto" and not roles.moved and not self._bypasses

    def _passes(self, roles: LanguageRoles) -> Passes:
        return Passes(
            self.needs(),
            recompute=self.old_logprob == "recompute" or self.rollout_correction is not None,
            check=self._tolerance if self.old_logprob == "auto" and (roles.moved or not roles.on_policy) else None,
            entropy=self.high_entropy_fraction < 1,
            bypass=self._bypasses,
            measure=self.kl is not None and self.kl.early,
        )


@options
class ClipRange(WithRatio):
    """Base of losses in which a ratio counts within a range around 1."""

    clip: Positive = 0.2
    """Clip range of the probability ratio."""
    clip_high: Positive | None = None
    """Upper clip range if it is to differ from the lower one; null takes clip."""

    @model_validator(mode="after")
    def _range_exists(self) -> Self:
        if self.clip > 1:
            raise ValueError(f"clip is {self.clip}; ratios below 1 - clip can't exist then, so it must be <= 1")
        return self

    @property
    def _tolerance(self) -> float:
        return self.clip / 100

    @property
    def _range(self) -> dict[str, float]:
        return {"clip_low": self.clip, "clip_high": self.clip if self.clip_high is None else self.clip_high}


@options
class Clipped(ClipRange):
    """PPO's surrogate."""

    dual_clip: Positive | None = None
    """A token of negative advantage costs at most this many times it, so above 1 (3 is usual); null sets no bound."""

    @model_validator(mode="after")
    def _dual_clip_is_above_one(self) -> Self:
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip is {self.dual_clip}; it bounds a ratio that starts at 1, so it must be > 1")
        return self

    def surrogate(
        self, logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.losses.tokens import ppo_clip

        return ppo_clip(logprob, old, advantage, mask, dual_clip=self.dual_clip, **self._range)
