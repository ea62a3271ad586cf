"""KTO: responses that are good or bad by themselves, without pairs (Ethayarajh et al. 2024, arXiv:2402.01306)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from burnish.algorithms.language.base import LanguageNeeds, LanguageRoles
from burnish.algorithms.language.responses import ReferenceAlgorithm
from burnish.options import Finite, Positive
from burnish.registry import register
from burnish.rl.algorithm import Metrics, range_metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.responses import AnnotatedResponses, ResponseBatch
    from burnish.types.rollout import Loss, OfflineResponses, ScoredResponses


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

    def annotate(self, collected: ScoredResponses | OfflineResponses, roles: LanguageRoles) -> AnnotatedResponses:
        import torch

        from burnish.batches.responses import AnnotatedResponses, mismatched, trace_of

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

    def credit(self, annotated: AnnotatedResponses) -> tuple[ResponseBatch, Metrics]:

        from burnish.batches.responses import ResponseBatch, trace_of
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

        from burnish.losses.responses import kto_reference_point

        if self.reference_point != "opposite":
            return kto_reference_point(drift).expand(len(good))
        return torch.where(good, kto_reference_point(drift[~good]), kto_reference_point(drift[good]))

    def loss(self, part: ResponseBatch, roles: LanguageRoles) -> Loss:
        import torch

        from burnish.losses.responses import kto
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
