"""On-policy distillation: a student learns from teachers what they think of the tokens that it writes itself.

Agarwal et al. 2024 (arXiv:2306.13649); with a sampled token, as a policy gradient, Gu et al. 2024 (arXiv:2306.08543).
A teacher may be the policy itself that has read more: the answer, a hint, feedback (self-distillation).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from burnish.language.algorithms.base import LanguageNeeds, refuse
from burnish.language.algorithms.policy_gradient import TokenPolicyGradient
from burnish.options import Count, NonNegative, Positive
from burnish.options.language import TokenTeacher
from burnish.registry import ReadIf, register
from burnish.rl.algorithm import Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.batches import AnnotatedTokens, TokenBatch
    from burnish.language.roles import LanguageRoles
    from burnish.types.rollout import Loss, ScoredResponses


TOP_K = 64


@register("language algorithm", "distill")
class Distill(TokenPolicyGradient, advantage="group", surrogate="clip"):
    """Match teachers on the student's own responses, alone or beside rewards."""

    teachers: list[TokenTeacher] = Field(default_factory=list)
    """Whom to learn from; losses are summed by weight. A prompt has the teachers of its label, and those without."""
    divergence: Literal["reverse", "forward", "jsd"] = "reverse"
    """reverse: KL(student || teacher), which seeks a mode of the teacher; forward: KL(teacher || student), which covers
    all that it does; jsd: between them, see jsd_mix."""
    jsd_mix: Annotated[float, Field(gt=0, lt=1), ReadIf("divergence", "jsd")] = 0.5
    """jsd: share of the teacher in the mixture that both are compared with (GKD's beta)."""
    over: Literal["full", "top_k", "sampled"] = "full"
    """What is compared at each token: all tokens; the teacher's top_k and the rest as one; or the token that was
    sampled alone, by a policy gradient."""
    top_k: Annotated[Count | None, ReadIf("over", "top_k")] = None
    """over=top_k: how many; null is 64."""
    distill_coef: Positive = 1.0
    """Weight of the divergence, or of the advantage that stands for it."""
    reward_coef: NonNegative = 0.0
    """Weight of the advantages of rewards beside; 0 watches rewards and learns from teachers alone."""

    @model_validator(mode="after")
    def _options_of_distillation_are_read(self) -> Self:
        """Without rewards there is nothing to shape and to compare, and without a sampled token nothing to clip."""
        idle = {  # what only rewards are for
            "advantage", "advantage_clip", "advantage_clip_low", "overlong", "reward_norm", "reward_clip",
            "reward_clip_low", *(one.name for one in fields(self.parts["advantage"]) if one.name != "name"),
        }  # fmt: skip
        if self.over != "sampled":  # and what only an advantage is for
            own = (one.name for one in fields(self.parts["surrogate"]) if one.name != "name")
            idle |= {"surrogate", "high_entropy_fraction", *own}
        defaults = type(self).__pydantic_fields__  # type: ignore[attr-defined]
        refuse([
            (
                self.over == "sampled" and self.divergence == "jsd",
                "over is sampled, which estimates reverse and forward; divergence jsd needs full or top_k",
            ),
            (
                self.over == "full" and any(teacher.url for teacher in self.teachers),
                "over is full, but a server returns few log-probs of each token; set over to top_k or sampled",
            ),
            *(
                (
                    not self.reward_coef and getattr(self, name) != defaults[name].default,
                    f"{name} is {getattr(self, name)}, but reward_coef is 0: rewards are only watched; leave it "
                    "out, or set reward_coef",
                )
                for name in sorted(idle)
            ),
        ])  # fmt: skip
        return self

    def complaints(self, samples: int, longest: int) -> Iterator[str]:
        yield from super().complaints(samples, longest)
        if not self.teachers:
            yield (
                "algorithm.teachers is empty, and nothing else is learned from; give one: "
                "'algorithm.teachers=[{path: DIR}]' with a model that has the student's tokenizer"
            )

    def needs(self) -> LanguageNeeds:
        from dataclasses import replace

        needs = super().needs()
        initial = any(teacher.is_policy and teacher.weights == "initial" for teacher in self.teachers)
        return replace(
            needs, teachers=tuple(self.teachers), reference=needs.reference or initial,
            groups=needs.groups and self.reward_coef > 0,
        )  # fmt: skip

    def compute_logprobs(self, scored: ScoredResponses, roles: LanguageRoles) -> AnnotatedTokens:
        from dataclasses import replace

        from burnish.rl.surrogates import sampled_advantage

        sampled = self.over == "sampled"
        roles.teachers.begin(scored.prompts, scored.trace, 0 if sampled else self.top_k or TOP_K)
        annotated = super().compute_logprobs(scored, roles)
        if not sampled:
            return annotated
        kind = self.divergence
        assert kind != "jsd", "was refused"
        worth = roles.teachers.worth(
            scored.prompts, scored.trace, lambda student, teacher: sampled_advantage(student, teacher, kind)
        )
        return replace(annotated, taught=worth)

    def _extended(self, batch: TokenBatch, annotated: AnnotatedTokens) -> tuple[TokenBatch, Metrics]:
        from dataclasses import replace

        advantage, metrics = self.reward_coef * batch.advantage, {}
        if self.over == "sampled":
            advantage = advantage + self.distill_coef * annotated.taught * batch.mask
            metrics = {"actor/teacher_advantage": float(annotated.taught[batch.mask].mean()) if len(batch) else 0.0}
        return replace(batch, advantage=advantage), metrics

    def loss(self, part: TokenBatch, roles: LanguageRoles) -> Loss:
        from burnish.rl.surrogates import masked, terms
        from burnish.types.rollout import Loss

        if self.over == "sampled":
            return super().loss(part, roles)
        scores, apart = roles.teachers.compare(part.prompts, part.trace, self._measure, self.top_k or TOP_K)
        policy, apart = self.policy_loss(part, scores, roles), masked(apart, part.mask)
        total = self.total(apart, part)
        measured: dict[str, Any] = {"actor/distill_loss": (total.detach(), terms(part.mask, self.loss_agg_mode))}
        return Loss(policy.total + self.distill_coef * total, policy.metrics | measured)

    def _measure(self, student: Tensor, teacher: Tensor, ids: Tensor | None) -> Tensor:
        """How far the student is from a teacher at each token [N], from log-probs [N, V], or of the tokens ``ids``."""
        from burnish.rl.surrogates import divergence, with_rest

        if ids is None and self.over == "top_k":
            teacher, ids = teacher.topk(min(self.top_k or TOP_K, teacher.shape[-1]))
        if ids is not None:
            student, teacher = with_rest(student.gather(-1, ids)), with_rest(teacher)
        return divergence(student, teacher, self.divergence, mix=self.jsd_mix)
