"""SFT: flow matching on images of the user (Lipman et al. 2022, arXiv:2210.02747), or on the best of the own ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from burnish.diffusion.algorithms.base import Needs
from burnish.diffusion.algorithms.forward_process import ForwardProcess
from burnish.diffusion.algorithms.policy_gradient import summed
from burnish.options import BelowOne, Count, Finite, Positive
from burnish.registry import ReadIf, register
from burnish.rl.algorithm import Metrics, range_metrics

if TYPE_CHECKING:
    from burnish.diffusion.batches import ForwardTerms, JudgedSamples
    from burnish.diffusion.roles import FlowRoles
    from burnish.types.rollout import Loss, OfflineSamples, Scored


@register("flow algorithm", "sft")
class SFT(ForwardProcess):
    """Imitate images."""

    online: bool = False
    """Imitate the best of the own samples of a prompt (best-of-n); false imitates the images in data.train_files."""
    best: Annotated[Count, ReadIf("online")] = 1
    """online: the N best samples of a prompt are imitated."""
    min_reward: Annotated[Finite | None, ReadIf("online")] = None
    """online: and only those with at least this reward; null takes the best, however good they are."""
    reward_temperature: Annotated[Positive | None, ReadIf("online")] = None
    """online: weigh each of them by exp(reward / this), relative to the others of its prompt (reward-weighted
    regression); null weighs all alike."""
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
        from burnish.rl.preference import likelihood_weights, select_best

        scores = scored.scores
        rows = select_best(scores.reward, scored.group, scores.missing, self.best)
        if self.min_reward is not None:
            rows = rows[scores.reward[rows] >= self.min_reward]
        metrics = range_metrics(rewards=scores.reward[~scores.missing]) | {"train/imitated": float(len(rows))}
        if len(rows):
            metrics["train/imitated_reward"] = float(scores.reward[rows].mean())
        weight = torch.ones_like(scores.reward)
        if self.reward_temperature is not None:
            weight[rows] = likelihood_weights(scores.reward[rows], scored.group[rows], self.reward_temperature)
        return judge(scored, weight, self.levels, members=rows.cpu()[:, None]), metrics

    def loss(self, part: ForwardTerms, roles: FlowRoles) -> Loss:
        from burnish.diffusion.losses import matching_error

        loss = part.value * matching_error(self.predict(roles.policy, part), part.target, share=part.share)
        return summed(loss, {"actor/sft_loss": loss})
