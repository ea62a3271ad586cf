"""SFT: flow matching on images of the user (Lipman et al. 2022, arXiv:2210.02747), or on the best of the own ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from burnish.diffusion.algorithms.base import Needs
from burnish.diffusion.algorithms.forward_process import ForwardProcess
from burnish.diffusion.algorithms.policy_gradient import summed
from burnish.options import BelowOne, Count
from burnish.registry import register
from burnish.rl.algorithm import Metrics, range_metrics
from burnish.rl.imitation import BestOfOwn

if TYPE_CHECKING:
    from burnish.diffusion.batches import ForwardTerms, JudgedSamples
    from burnish.diffusion.roles import FlowRoles
    from burnish.types.rollout import Loss, OfflineSamples, Scored


@register("flow algorithm", "sft")
class SFT(BestOfOwn, ForwardProcess):
    """Imitate images."""

    prompt_dropout: BelowOne = 0.0
    """Share of the images that are learned without their prompt, so that guidance keeps something to steer away
    from."""
    train_timesteps: Count = 1
    """Noise levels that each image is trained at, drawn anew at every update."""
    times: Literal["schedule", "uniform", "logit_normal"] = "logit_normal"
    """Draw noise levels from the sampling schedule without repetition, uniformly from (0, 1), or mostly from the
    middle (Stable Diffusion 3)."""

    def needs(self) -> Needs:
        return Needs(
            data="prompts" if self.online else "images", groups=self.online,
            schedule_times=self.schedule_times, schedule_range=self.time_range,
        )  # fmt: skip

    def compute_advantages(self, annotated: Any) -> tuple[JudgedSamples, Metrics]:
        import torch

        from burnish.diffusion.batches import take, without_prompts

        metrics: Metrics = {}
        if self.online:
            judged, metrics = self._best(annotated)
        else:
            given: OfflineSamples = annotated
            judged = take(given, self.levels, torch.ones(1))
        return without_prompts(judged, self.prompt_dropout) if self.prompt_dropout > 0 else judged, metrics

    def _best(self, scored: Scored) -> tuple[JudgedSamples, Metrics]:
        """The samples that are imitated."""
        import torch

        from burnish.diffusion.batches import judge

        scores, (rows, chosen) = scored.scores, self.imitated(scored)
        metrics = range_metrics(rewards=scores.reward[~scores.missing]) | {"train/imitated": float(len(rows))}
        if len(rows):
            metrics["train/imitated_reward"] = float(scores.reward[rows].mean())
        weight = torch.ones_like(scores.reward)
        weight[rows] = chosen
        return judge(scored, weight, self.levels, members=rows.cpu()[:, None]), metrics

    def loss(self, part: ForwardTerms, roles: FlowRoles) -> Loss:
        from burnish.diffusion.losses import matching_error

        loss = part.value * matching_error(self.predict(roles.policy, part), part.target, share=part.share)
        return summed(loss, {"actor/sft_loss": loss})
