"""On-policy distillation: a student learns from teachers what they think of the tokens that it writes itself.

Agarwal et al. 2024 (arXiv:2306.13649); with a sampled token, as a policy gradient, Gu et al. 2024 (arXiv:2306.08543).
A teacher may be the policy itself that has read more: the answer, a hint, feedback (self-distillation), or another
response to the same prompt that did well (SDPO).
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from burnish.language.algorithms.base import LanguageNeeds
from burnish.language.algorithms.policy_gradient import Aggregation, TokenPolicyGradient, old_of
from burnish.options import Count, NonNegative, Positive, Rules
from burnish.options.language import TokenTeacher
from burnish.registry import ReadIf, register
from burnish.rl.algorithm import Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.batches import AnnotatedTokens, TokenBatch
    from burnish.language.config import LanguageConfig
    from burnish.language.roles import LanguageRoles
    from burnish.language.spans import Vocabularies
    from burnish.types.rollout import Loss, ScoredResponses


TOP_K = 64
Divergence = Literal["reverse", "forward", "jsd"]
Over = Literal["full", "top_k", "student_top_k", "sampled"]
TopK = Annotated[Count | None, ReadIf("over", "top_k", "student_top_k")]


@register("language algorithm", "distill")
class Distill(TokenPolicyGradient, advantage="group", surrogate="clip"):
    """Match teachers on the student's own responses, alone or beside rewards."""

    ratio_limit: ClassVar[float | None] = None  # weighs tokens by their ratio to the sampling policy, at most this

    teachers: list[TokenTeacher] = Field(default_factory=list)
    """Whom to learn from; losses are summed by weight. A prompt has the teachers of its label, and those without."""
    divergence: Divergence = "reverse"
    """reverse: KL(student || teacher), which seeks a mode of the teacher; forward: KL(teacher || student), which covers
    all that it does; jsd: between them, see jsd_mix."""
    jsd_mix: Annotated[float, Field(gt=0, lt=1), ReadIf("divergence", "jsd")] = 0.5
    """jsd: share of the teacher in the mixture that both are compared with (GKD's beta)."""
    over: Over = "full"
    """What is compared at each token: all tokens; the top_k of the teacher, or of the student, and the rest as one; or
    the token that was sampled alone, by a policy gradient."""
    top_k: TopK = None
    """over=top_k and student_top_k: how many; null is 64."""
    distill_coef: Positive = 1.0
    """Weight of the divergence, or of the advantage that stands for it."""
    reward_coef: NonNegative = 0.0
    """Weight of the advantages of rewards beside; 0 watches rewards and learns from teachers alone."""

    def contradictions(self, run: LanguageConfig) -> Rules:
        # without rewards there is nothing to shape and to compare, and without a sampled token nothing to clip
        idle = {  # what only rewards are for
            "advantage", "advantage_clip", "advantage_clip_low", "overlong", "reward_norm", "reward_clip",
            "reward_clip_low", *(one.name for one in fields(self.parts["advantage"])),
        }  # fmt: skip
        if self.over != "sampled":  # and what only an advantage is for
            idle |= {"surrogate", "high_entropy_fraction", *(one.name for one in fields(self.parts["surrogate"]))}
        if self.over != "sampled" and self.ratio_limit is None and getattr(self.kl, "kind", None) != "unbiased":
            idle |= {"old_logprob"}
        defaults = type(self).__pydantic_fields__  # type: ignore[attr-defined]
        rates = {one.update_rate for one in self.teachers if one.is_policy and one.weights == "initial"}
        return [
            *super().contradictions(run),
            (
                not self.teachers,
                "teachers is empty, and nothing else is learned from; give one: "
                "'algorithm.teachers=[{path: DIR}]' with a model that has the student's tokenizer",
            ),
            (
                self.over == "sampled" and self.divergence == "jsd",
                "over is sampled, which estimates reverse and forward; divergence jsd needs full or top_k",
            ),
            (
                self.over in ("full", "student_top_k") and any(teacher.url for teacher in self.teachers),
                f"over is {self.over}, but a server returns log-probs of the tokens that it finds likely; set over to "
                "top_k or sampled",
            ),
            (
                self.name != "gold" and any(teacher.shared_weight is not None for teacher in self.teachers),
                "teachers have a shared_weight, but only algorithm=gold compares other tokens; remove it",
            ),
            (
                len(rates) > 1 or (rates - {0.0} and self.kl is not None),
                f"teachers have an update_rate of {max(rates, default=0):g}, but all that are the policy with weights "
                "initial, and the reference of kl, are one network; give all the same rate, and leave kl out",
            ),
            *(
                (
                    not self.reward_coef and getattr(self, name) != defaults[name].default,
                    f"{name} is set, but reward_coef is 0: rewards are only watched; leave it "
                    "out, or set reward_coef",
                )
                for name in sorted(idle - {"name"})
            ),
        ]  # fmt: skip

    def needs(self) -> LanguageNeeds:
        from dataclasses import replace

        needs = super().needs()
        initial = any(teacher.is_policy and teacher.weights == "initial" for teacher in self.teachers)
        compared = any(teacher.solution is not None for teacher in self.teachers)
        return replace(
            needs, teachers=tuple(self.teachers), reference=needs.reference or initial,
            refreshed=needs.refreshed or self._update_rate > 0,
            groups=compared or (needs.groups and self.reward_coef > 0),
        )  # fmt: skip

    @property
    def _update_rate(self) -> float:
        """Of the teachers that follow the policy."""
        return max((teacher.update_rate for teacher in self.teachers), default=0.0)

    def compute_logprobs(self, scored: ScoredResponses, roles: LanguageRoles) -> AnnotatedTokens:
        from dataclasses import replace
        from functools import partial

        from burnish.rl.surrogates import sampled_advantage

        sampled, asked = self.over == "sampled", roles.teachers.asked(scored)
        roles.teachers.begin(asked, scored.trace, 0 if sampled else self.top_k or TOP_K)
        annotated = replace(super().compute_logprobs(scored, roles), asked=asked)
        if not sampled:
            return annotated
        assert self.divergence != "jsd", "was refused"
        measure = partial(sampled_advantage, kind=self.divergence)
        return replace(annotated, taught=roles.teachers.worth(asked, scored.trace, measure))

    def _extended(self, batch: TokenBatch, annotated: AnnotatedTokens) -> tuple[TokenBatch, Metrics]:
        from dataclasses import replace

        import torch

        advantage, metrics = self.reward_coef * batch.advantage, {}
        taught = torch.tensor([any(asked) for asked in batch.asked], dtype=torch.bool)
        if any(teacher.reads_more for teacher in self.teachers):
            metrics["actor/taught_ratio"] = float(taught.float().mean()) if len(taught) else 0.0
        if self.over == "sampled":
            advantage = advantage + self.distill_coef * annotated.taught * batch.mask
            metrics["actor/teacher_advantage"] = float(annotated.taught[batch.mask].mean()) if len(batch) else 0.0
        # whom nobody teaches, and whose rewards don't count, is no term of the loss
        mask = batch.mask if self.reward_coef else batch.mask & taught[:, None]
        return replace(batch, advantage=advantage, mask=mask), metrics

    def loss(self, part: TokenBatch, roles: LanguageRoles) -> Loss:
        from burnish.rl.surrogates import log_ratio, masked, terms
        from burnish.types.rollout import Loss

        if self.over == "sampled":
            return super().loss(part, roles)
        scores, apart = roles.teachers.compare(part.asked, part.trace, self._measure, self.top_k or TOP_K)
        policy, apart = self.policy_loss(part, scores, roles), masked(apart, part.mask)
        if self.ratio_limit is not None:
            ratio = log_ratio(scores.logprob.detach(), old_of(part, scores, roles), part.mask).exp()
            apart = apart * ratio.clamp(max=self.ratio_limit)
        total = self.total(apart, part)
        measured: dict[str, Any] = {"actor/distill_loss": (total.detach(), terms(part.mask, self.loss_agg_mode))}
        return Loss(policy.total + self.distill_coef * total, policy.metrics | measured)

    def _measure(self, student: Tensor, teacher: Tensor, ids: Tensor | Vocabularies | None) -> Tensor:
        """How far the student is from a teacher at each token [N], from log-probs [N, V], or of the tokens ``ids``."""
        from burnish.language.spans import Vocabularies
        from burnish.rl.surrogates import divergence, with_rest

        assert not isinstance(ids, Vocabularies), "only GOLD compares texts"
        if ids is None and self.over != "full":
            likely = teacher if self.over == "top_k" else student.detach()
            ids = likely.topk(min(self.top_k or TOP_K, likely.shape[-1])).indices
            teacher = teacher.gather(-1, ids)
        if ids is not None:
            student, teacher = with_rest(student.gather(-1, ids)), with_rest(teacher)
        return divergence(student, teacher, self.divergence, mix=self.jsd_mix)

    def after_update(self, roles: LanguageRoles, update: int) -> Metrics:
        if self._update_rate:
            roles.move("reference", self._update_rate)
        return super().after_update(roles, update)


@register("language algorithm", "gold")
class GOLD(Distill):
    """General online logit distillation: teachers with a path may have another tokenizer (Patiño et al. 2025,
    "Unlocking On-Policy Distillation for Any Model Family").

    A response is tokenized by the teacher too, and compared over the shortest spans of text at whose end both have a
    token. The probability of a span that begins with token y is that of y times those of the tokens that follow in it,

        P(y) = p(y | before) product over the others of p(token | before),

    which are no distribution if there are others. Tokens that both have are compared by the divergence, what else each
    has by its sorted probabilities (``hybrid_divergence``), and the loss is a mean over spans within a response. What
    ends a response is not compared. As TRL's GOLDTrainer with use_extended_uld and uld_use_hybrid_loss has it, on the
    student's own responses alone (lmbda=1); probabilities below 1e-8 are not raised to it.
    """

    divergence: Divergence = "jsd"
    over: Literal["full"] = "full"
    loss_agg_mode: Aggregation = "seq-mean-token-mean"

    def needs(self) -> LanguageNeeds:
        from dataclasses import replace

        return replace(super().needs(), aligned=True)

    def _measure(self, student: Tensor, teacher: Tensor, ids: Tensor | Vocabularies | None) -> Tensor:
        from burnish.language.spans import Vocabularies
        from burnish.rl.surrogates import hybrid_divergence

        if not isinstance(ids, Vocabularies):
            return super()._measure(student, teacher, ids)
        return hybrid_divergence(
            student, teacher, ids.shared, ids.own, ids.theirs, self.divergence, mix=self.jsd_mix, weight=ids.weight
        )


@register("language algorithm", "sdpo")
class SDPO(Distill):
    """Self-distillation policy optimisation: the policy learns from itself as it would have answered behind another
    response to the prompt that did well (Hübotter et al. 2026, arXiv:2601.20802).

    With s the policy, and t a slow average of it that reads the question q, the solution y* and the response y so far,

        m = (1 - b) s(. | q, y_<t) + b t(. | q, y*, y_<t),    loss = b KL(t || m) + (1 - b) KL(s || m)

    over the student's top_k tokens and the rest as one, times the ratio to the policy that sampled, at most
    ratio_limit. A response that nothing is known of is no term of the loss. As the authors' code has it; only the words
    around the solution are others, and the teacher follows after each update, not after each optimizer step.
    """

    ratio_limit: ClassVar[float | None] = 2.0

    teachers: list[TokenTeacher] = Field(
        default_factory=lambda: [TokenTeacher(weights="initial", update_rate=0.05, solution=1.0)]
    )
    """Whom to learn from: the policy's average, behind a response of reward 1; add feedback: true where rewards say
    what is wrong."""
    divergence: Divergence = "jsd"
    over: Over = "student_top_k"
    top_k: TopK = 100
