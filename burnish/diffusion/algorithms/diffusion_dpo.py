"""Diffusion-DPO: preferences between images (Wallace et al. 2023, arXiv:2311.12908), of flow-matching models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from burnish.diffusion.algorithms.base import Needs
from burnish.diffusion.algorithms.forward_process import ForwardProcess
from burnish.diffusion.algorithms.policy_gradient import summed
from burnish.options import Count, NonNegative, Positive
from burnish.registry import ReadIf, register
from burnish.rl.algorithm import Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.diffusion.batches import ForwardTerms, JudgedSamples
    from burnish.diffusion.roles import FlowRoles
    from burnish.types.rollout import Loss, OfflineSamples, Scored


@register("flow algorithm", "diffusion_dpo")
class DiffusionDPO(ForwardProcess):
    """Prefer one image to another, more than the reference does; noise and time are those of the pair."""

    online: bool = True
    """Compare the best and the worst of a group of own samples; false learns from the pairs in data.train_files."""
    beta: Positive = 2000.0
    """Strength of the pull to the reference, for errors that are averaged over latents."""
    error: Literal["velocity", "noise"] = "velocity"
    """What is predicted right or wrong: the velocity, as flow-matching models are trained to, or the noise, for the
    published beta of models that predict noise (2000 for Stable Diffusion 1.5, 5000 for SDXL)."""
    kind: Literal["sigmoid", "ipo"] = "sigmoid"
    """Bradley-Terry's loss, or IPO's, which pulls the margin to 1 / (2 beta) and never further."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5), ReadIf("kind", "sigmoid")] = 0.0
    """sigmoid: probability that winner and loser were mixed up."""
    sft_coef: NonNegative = 0.0
    """Weight of the flow-matching loss of the winner, which keeps it from becoming less likely together with the
    loser."""
    train_timesteps: Count = 1
    """Noise levels that each pair is trained at, drawn anew at every update."""
    times: Literal["schedule", "uniform", "logit_normal"] = "uniform"
    """Draw noise levels from the sampling schedule without repetition, uniformly from (0, 1), or mostly from the
    middle (Stable Diffusion 3)."""

    def needs(self) -> Needs:
        return Needs(
            data="prompts" if self.online else "pairs", groups=self.online, atom="pair", reference=True,
            schedule_times=self.schedule_times, schedule_range=self.time_range,
            unguided=self.train_guidance == "none",
        )  # fmt: skip

    def compute_advantages(self, annotated: Any) -> tuple[JudgedSamples, Metrics]:
        import torch

        from burnish.diffusion.batches import take

        if self.online:
            return self._pairs(annotated)
        given: OfflineSamples = annotated
        return take(given, self.levels, torch.tensor([1.0, -1.0])), {"train/pairs": float(len(given))}

    def _pairs(self, scored: Scored) -> tuple[JudgedSamples, Metrics]:
        import torch

        from burnish.diffusion.batches import judge
        from burnish.rl.algorithm import advantage_metrics
        from burnish.rl.preference import pairs

        scores = scored.scores
        winner, loser = pairs(scores.reward, scored.group, scores.missing)
        sign = torch.zeros_like(scores.reward)
        sign[winner], sign[loser] = 1.0, -1.0
        metrics = advantage_metrics(scores, sign) | {"train/pairs": float(len(winner))}
        if len(winner):
            metrics["train/pair_margin"] = float((scores.reward[winner] - scores.reward[loser]).mean())
        members = torch.stack([winner, loser], 1).cpu()
        return judge(scored, sign, self.levels, members=members, shared_noise=True), metrics

    def loss(self, part: ForwardTerms, roles: FlowRoles) -> Loss:
        import torch

        from burnish.rl.preference import diffusion_dpo

        with torch.no_grad():
            reference = self._error(self.predict(roles.reference, part), part).view(-1, 2)
        error = self._error(self.predict(roles.policy, part), part).view(-1, 2)
        loss, values = diffusion_dpo(
            error[:, 0], error[:, 1], reference[:, 0], reference[:, 1],
            beta=self.beta, label_smoothing=self.label_smoothing, kind=self.kind,
        )  # fmt: skip
        values |= {"actor/dpo_loss": loss, "actor/error_chosen": error[:, 0], "actor/error_rejected": error[:, 1]}
        if self.sft_coef > 0:
            loss = loss + self.sft_coef * error[:, 0]
        return summed(loss, values)

    def _error(self, velocity: Tensor, part: ForwardTerms) -> Tensor:
        """Of a velocity, or of the noise that it stands for: [M]."""
        from burnish.diffusion.losses import matching_error
        from burnish.diffusion.steps import column

        error = matching_error(velocity, part.target, share=part.share)
        # the noise in x_t is x_t + (1 - t) v
        return error if self.error == "velocity" else error * (1 - column(part.time, error)).square()

    def size(self, batch: JudgedSamples) -> int:
        return batch.time.numel()
