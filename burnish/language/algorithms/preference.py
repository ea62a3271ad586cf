"""What losses on pairs of responses have in common: a chosen one is preferred to a rejected one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from burnish.language.algorithms.base import LanguageNeeds
from burnish.language.algorithms.sft import ReferenceAlgorithm
from burnish.options import Finite, NonNegative, Positive
from burnish.registry import ReadIf, options, register
from burnish.rl.algorithm import Memory, Metrics, range_metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.batches import AnnotatedResponses, ResponseBatch
    from burnish.language.roles import LanguageRoles
    from burnish.types.rollout import Loss, OfflineResponses, ScoredResponses


@options
class Paired(ReferenceAlgorithm):
    """Base of losses on the margin by which the chosen response is ahead of the rejected one."""

    online: bool = True
    """Compare the best and the worst of the own responses to a prompt; false learns from the pairs in
    data.train_files."""
    min_margin: Annotated[NonNegative, ReadIf("online")] = 0.0
    """online: rewards of a pair must differ by more than this. Equal rewards never make a pair."""
    reference_free: bool = False
    """Compare with a reference that finds all responses equally likely, which saves its forward passes."""
    rpo_alpha: NonNegative = 0.0
    """Weight of the chosen response's negative log-likelihood per token, which keeps it from becoming less likely
    together with the rejected one (RPO)."""

    def needs(self) -> LanguageNeeds:
        return LanguageNeeds(
            data="prompts" if self.online else "preferences", reference=not self.reference_free, groups=self.online,
            atom="pair",
        )  # fmt: skip

    def preferred(
        self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, point: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each pair and what it reports, [P] each, from log-probs of responses.

        ``point`` [P] is what rewards are measured from, where ``compute_logprobs`` has found one.
        """
        raise NotImplementedError

    def compute_logprobs(
        self, collected: ScoredResponses | OfflineResponses, roles: LanguageRoles
    ) -> AnnotatedResponses:
        import torch

        from burnish.language.batches import AnnotatedResponses, trace_of

        trace = trace_of(collected)
        reference = torch.zeros(len(trace))
        if not self.reference_free:
            # of a group only the two that may be compared
            rows = torch.cat(self._pairs(collected)) if self.online else torch.arange(len(trace))
            with roles.clock("ref"):
                reference[rows] = self.response_logprobs(roles.reference, trace.select(rows), roles)
        return AnnotatedResponses(collected=collected, reference=reference, drift=torch.zeros(0))

    def _pairs(self, answered: Any) -> tuple[Tensor, Tensor]:
        """Rows of the chosen and of the rejected responses."""
        from burnish.rl.rewards import pairs

        scores = answered.scores
        return pairs(scores.reward, answered.group, scores.missing, margin=self.min_margin)

    def compute_advantages(self, annotated: AnnotatedResponses) -> tuple[ResponseBatch, Metrics]:
        import torch

        from burnish.language.batches import ResponseBatch
        from burnish.types.completion import ResponseRows
        from burnish.types.rollout import OfflineResponses

        collected, metrics = annotated.collected, {}
        if isinstance(collected, OfflineResponses):
            answers, reference = collected.answers, annotated.reference.view(-1, 2)
        else:
            chosen, rejected = self._pairs(collected)
            members = torch.stack([chosen, rejected], 1)
            answers = ResponseRows(trace=collected.trace.select(members.flatten()), members=2)
            reference = annotated.reference[members]
            reward = collected.scores.reward
            judged = reward[~collected.scores.missing]
            metrics = range_metrics(score=judged, rewards=judged)
            if len(chosen):
                metrics["train/pair_margin"] = float((reward[chosen] - reward[rejected]).mean())
        metrics["train/pairs"] = float(len(answers))
        good = torch.ones(len(answers), dtype=torch.bool)
        point = torch.full((len(answers),), annotated.point)
        return ResponseBatch(answers=answers, reference=reference, good=good, point=point), metrics

    def loss(self, part: ResponseBatch, roles: LanguageRoles) -> Loss:
        from burnish.rl.surrogates import sequence_mean
        from burnish.types.batch import to_device
        from burnish.types.rollout import Loss

        trace = part.answers.trace
        logprob = roles.policy(trace).logprob
        mask = to_device(trace.mask, logprob.device)
        whole, reference = self.response_logprob(logprob, mask).view(-1, 2), part.reference
        loss, values = self.preferred(whole[:, 0], whole[:, 1], reference[:, 0], reference[:, 1], part.point)
        values |= {f"actor/{self.name}_loss": loss, "logps/chosen": whole[:, 0], "logps/rejected": whole[:, 1]}
        if self.rpo_alpha > 0:
            unlikely = -sequence_mean(logprob[::2], mask[::2])
            values["actor/nll_loss"] = unlikely
            loss = loss + self.rpo_alpha * unlikely
        return Loss(loss.sum(), {name: (value.detach().sum(), len(value)) for name, value in values.items()})


@register("language algorithm", "dpo")
class DPO(Paired):
    """Prefer one response to another, more than the reference does."""

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Probability that chosen and rejected were mixed up (conservative DPO)."""

    def preferred(
        self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, point: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.language.losses import dpo

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
        from burnish.language.losses import ipo

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
        from burnish.language.losses import simpo

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

    def compute_logprobs(
        self, collected: ScoredResponses | OfflineResponses, roles: LanguageRoles
    ) -> AnnotatedResponses:
        from dataclasses import replace

        import torch

        from burnish.language.batches import trace_of

        annotated = super().compute_logprobs(collected, roles)
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
        from burnish.language.losses import bco, dpo

        given = (chosen, rejected, reference_chosen, reference_rejected)
        preference, values = dpo(*given, beta=self.beta)
        quality = bco(*given, beta=self.beta, shift=point)
        values |= {"actor/preference_loss": preference, "actor/quality_loss": quality}
        return self.preference_weight * preference + self.quality_weight * quality, values


@register("language algorithm", "kto")
class KTO(ReferenceAlgorithm):
    """Raise good responses and lower bad ones, each by itself, as seen from how far the policy has moved anyway."""

    online: bool = True
    """Learn from own responses, which their rewards make good or bad; false learns from the judged ones in
    data.train_files."""
    threshold: Finite | None = None
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

    @model_validator(mode="after")
    def _threshold_is_read(self) -> Self:
        if not self.online and self.threshold is not None:
            raise ValueError(
                f"threshold is {self.threshold:g}, but online is false: the judgements are given; leave it out"
            )
        return self

    def needs(self) -> LanguageNeeds:
        return LanguageNeeds(
            data="prompts" if self.online else "judgements", reference=True,
            groups=self.online and self.threshold is None,
        )  # fmt: skip

    def compute_logprobs(
        self, collected: ScoredResponses | OfflineResponses, roles: LanguageRoles
    ) -> AnnotatedResponses:
        import torch

        from burnish.language.batches import AnnotatedResponses, mismatched, trace_of

        trace = trace_of(collected)
        rows, _ = self._judgements(collected)
        reference, drift = torch.zeros(len(trace)), torch.zeros(0)
        with roles.clock("ref"):
            reference[rows] = self.response_logprobs(roles.reference, trace.select(rows), roles)
        if self.reference_point == "opposite":
            drift = self.response_logprobs(roles.policy, trace.select(rows), roles) - reference[rows]
        if self.reference_point == "mismatched":
            others = mismatched(trace.select(rows))
            drift = self.response_logprobs(roles.policy, others, roles) - self.response_logprobs(
                roles.reference, others, roles
            )
        return AnnotatedResponses(collected=collected, reference=reference, drift=drift)

    def _judgements(self, collected: ScoredResponses | OfflineResponses) -> tuple[Tensor, Tensor]:
        """Rows of the responses that are good or bad, and which they are: [J] long and [J] bool."""
        import torch

        from burnish.rl.advantages import group_statistics
        from burnish.types.rollout import OfflineResponses

        if isinstance(collected, OfflineResponses):
            return torch.arange(len(collected)), collected.good
        scores = collected.scores
        if self.threshold is not None:
            rows = (~scores.missing).nonzero().flatten()
            return rows, scores.reward[rows] >= self.threshold
        groups = group_statistics(scores.reward, collected.group, scores.missing)
        ahead = scores.reward.double() - groups.mean[groups.label]
        rows = (~scores.missing & ~groups.constant[groups.label] & (ahead != 0)).nonzero().flatten()
        return rows, ahead[rows] > 0

    def compute_advantages(self, annotated: AnnotatedResponses) -> tuple[ResponseBatch, Metrics]:

        from burnish.language.batches import ResponseBatch, trace_of
        from burnish.types.completion import ResponseRows
        from burnish.types.rollout import ScoredResponses

        collected, drift, metrics = annotated.collected, annotated.drift, {}
        rows, good = self._judgements(collected)
        if isinstance(collected, ScoredResponses):
            judged = collected.scores.reward[~collected.scores.missing]
            metrics = range_metrics(score=judged, rewards=judged)
        point = self._points(drift, good)
        metrics |= {
            "train/judged": float(len(rows)),
            "actor/reference_point": float(point.mean()) if len(rows) else 0.0,
        }
        if len(rows):
            metrics["train/desirable_ratio"] = float(good.float().mean())
        answers = ResponseRows(trace=trace_of(collected).select(rows), members=1)
        return ResponseBatch(
            answers=answers, reference=annotated.reference[rows, None], good=good, point=point
        ), metrics

    def _points(self, drift: Tensor, good: Tensor) -> Tensor:
        """What each of the judged responses [J] is measured from, by log-ratios of policy and reference."""
        import torch

        from burnish.language.losses import kto_reference_point

        if self.reference_point != "opposite":
            return kto_reference_point(drift).expand(len(good))
        return torch.where(good, kto_reference_point(drift[~good]), kto_reference_point(drift[good]))

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
        nothing = torch.nan
        values |= {
            "actor/kto_loss": loss.detach(),
            "logps/chosen": torch.where(part.good, logprob.detach(), nothing),
            "logps/rejected": torch.where(part.good, nothing, logprob.detach()),
        }
        return Loss(loss.sum(), {name: (value.nansum(), (~value.isnan()).sum()) for name, value in values.items()})
