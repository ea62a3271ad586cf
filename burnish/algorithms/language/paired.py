"""What losses on pairs of responses have in common: a chosen one is preferred to a rejected one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from burnish.algorithms.language.base import LanguageNeeds, LanguageRoles
from burnish.algorithms.language.responses import ReferenceAlgorithm
from burnish.options import NonNegative
from burnish.registry import options
from burnish.rl.algorithm import Metrics, range_metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.responses import AnnotatedResponses, ResponseBatch
    from burnish.types.rollout import Loss, OfflineResponses, ScoredResponses


@options
class Paired(ReferenceAlgorithm):
    """Base of losses on the margin by which the chosen response is ahead of the rejected one."""

    online: bool = True
    """Compare the best and the worst of the own responses to a prompt; false learns from the pairs in
    data.train_files."""
    min_margin: NonNegative = 0.0
    """online: rewards of a pair must differ by more than this. Equal rewards never make a pair."""
    reference_free: bool = False
    """Compare with a reference that finds all responses equally likely, which saves its forward passes."""
    rpo_alpha: NonNegative = 0.0
    """Weight of the chosen response's negative log-likelihood per token, which keeps it from becoming less likely
    together with the rejected one (RPO)."""

    @model_validator(mode="after")
    def _margin_is_read(self) -> Self:
        if not self.online and self.min_margin != 0:
            raise ValueError("min_margin is never read when online is false: the pairs are given; leave it out")
        return self

    def needs(self) -> LanguageNeeds:
        return LanguageNeeds(
            data="prompts" if self.online else "preferences", reference=not self.reference_free, groups=self.online,
            atom="pair",
        )  # fmt: skip

    def preferred(
        self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, point: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each pair and what it reports, [P] each, from log-probs of responses.

        ``point`` [P] is what rewards are measured from, where ``annotate`` has found one.
        """
        raise NotImplementedError

    def annotate(self, collected: ScoredResponses | OfflineResponses, roles: LanguageRoles) -> AnnotatedResponses:
        import torch

        from burnish.batches.responses import AnnotatedResponses, trace_of

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

    def credit(self, annotated: AnnotatedResponses) -> tuple[ResponseBatch, Metrics]:
        import torch

        from burnish.batches.responses import ResponseBatch
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
