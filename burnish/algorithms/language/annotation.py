"""What token policy gradients need a forward pass for, before the policy learns: in micro-batches of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.algorithms.language.base import LanguageNeeds, LanguageRoles
from burnish.language.cost import token_budget_batches

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import AnnotatedTokens
    from burnish.types.completion import Completion
    from burnish.types.rollout import ScoredResponses


@dataclass(frozen=True)
class Passes:
    """Which forward passes an algorithm asks for."""

    needs: LanguageNeeds
    recompute: bool  # log-probs under the policy that learns, whatever the sampler says
    check: float | None  # else look whether the sampler's are its own, to so much; None trusts them
    entropy: bool
    bypass: bool  # ratios refer to the sampler even so
    measure: bool  # the KL to the reference is needed before the policy learns

    def annotate(self, answered: ScoredResponses, roles: LanguageRoles) -> AnnotatedTokens:
        """Run them."""
        from burnish.batches.tokens import AnnotatedTokens
        from burnish.losses import correction_metrics

        trace, metrics = answered.trace, {}
        nothing = trace.logprob[:, :0]
        recompute = self.recompute
        if not recompute and self.check is not None:
            difference = self._difference(trace, roles)
            recompute = difference > self.check
            metrics["old_policy/logprob_check"] = difference
        metrics["old_policy/recomputed"] = float(recompute and not self.bypass)
        # a sampler that rounds otherwise would show a KL where there is none
        own = self.measure and roles.sampler_rounds
        learner, entropy, value = self._policy_and_critic(trace, roles, scored=recompute or self.entropy or own)
        if learner.shape[1]:
            metrics |= correction_metrics(learner, trace.logprob, trace.mask)
        reference = nothing
        if self.needs.reference:
            (reference,) = in_parts(lambda part: [roles.reference(part).logprob], trace, roles)
        old = learner if recompute and not self.bypass else trace.logprob
        return AnnotatedTokens(
            answered=answered,
            old=old,
            learner=learner,
            entropy=entropy,
            reference=reference,
            compared=learner if roles.sampler_rounds else old,
            value=value,
            recomputed=recompute and not self.bypass,
            memory=roles.memory,
            metrics=metrics,
        )

    def _difference(self, trace: Completion, roles: LanguageRoles) -> float:
        """The largest difference between the log-probs of sampler and trainer in one micro-batch."""
        import torch

        rows = next(token_budget_batches(trace, roles.micro_batch_size))
        probe = trace.select(rows)
        with torch.no_grad():
            logprob = roles.policy(probe).logprob.cpu()
        return float(torch.where(probe.mask, logprob - probe.logprob, 0.0).abs().max())

    def _policy_and_critic(
        self, trace: Completion, roles: LanguageRoles, *, scored: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies and values, each [B, T], or [B, 0] where nobody wants it."""

        def both(part: Completion) -> Sequence[Tensor]:
            scores, value = roles.scores_and_values(part)
            return scores.logprob, scores.entropy, value

        def policy(part: Completion) -> Sequence[Tensor]:
            scores = roles.policy(part)
            return scores.logprob, scores.entropy

        nothing = trace.logprob[:, :0]
        if scored and self.needs.critic:
            logprob, entropy, value = in_parts(both, trace, roles)
            return logprob, entropy, value
        if scored:
            logprob, entropy = in_parts(policy, trace, roles)
            return logprob, entropy, nothing
        if self.needs.critic:
            (value,) = in_parts(lambda part: [roles.values(part)], trace, roles)
            return nothing, nothing, value
        return nothing, nothing, nothing


def in_parts(
    function: Callable[[Completion], Sequence[Tensor]], trace: Completion, roles: LanguageRoles
) -> list[Tensor]:
    """Tensors [B, T] that ``function`` makes of micro-batches of tokens, without gradients, joined again.

    The micro-batches are shared out among the ranks, and all ranks get all of them.
    """
    import torch

    def run(some: list[int]) -> list[Tensor]:
        return [value.cpu() for value in function(trace.select(some))]

    with torch.no_grad():
        batches = list(token_budget_batches(trace, roles.micro_batch_size))
        parts = roles.distribute(run, batches)
    place = torch.tensor([row for some in batches for row in some]).argsort()
    return [torch.cat(list(column))[place] for column in zip(*parts, strict=True)]
