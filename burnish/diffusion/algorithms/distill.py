"""On-policy distillation: a student learns from frozen teachers at the states that it visits itself.

The idea is that of language models (Agarwal et al. 2024, arXiv:2306.13649); for denoising steps, verl-omni's
``distill_kl`` and ``distill_fm_mse``. With its own guided prediction as teacher it is guidance distillation
(Meng et al. 2023, arXiv:2210.03142).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from burnish.diffusion.algorithms.base import Needs, Recording, Role, Teacher
from burnish.diffusion.algorithms.policy_gradient import Window, mean_kl, summed
from burnish.options import Positive, Rules
from burnish.registry import ReadIf, register
from burnish.rl.algorithm import Algorithm, Metrics, range_metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.diffusion.config import FlowConfig
    from burnish.diffusion.roles import FlowRoles
    from burnish.types.rollout import Denoising, Loss, Scored, Steps


@register("flow algorithm", "distill")
class Distill(Algorithm):
    """Match teachers on the student's own trajectories. Rewards are watched and change nothing."""

    objective: Literal["distill_fm_mse", "distill_kl"] = "distill_fm_mse"
    """distill_fm_mse: squared difference of velocities; distill_kl: KL between the transitions of a stochastic step."""
    teachers: Annotated[list[Teacher], Field(min_length=1)] = Field(
        default_factory=lambda: [Teacher(guidance_scale=4.5)]
    )
    """Whom to learn from, each with path, lora, guidance_scale and weight; losses are summed by weight."""
    transition: Literal["ode", "sde", "cps", "dance"] = "ode"
    """What a recorded step of the rollout is; ode is deterministic, as images are drawn later."""
    noise_level: Annotated[Positive, ReadIf("transition", "sde", "cps", "dance")] = 0.7
    """Strength of the noise of a stochastic step, in the units of its transition; ode never reads it."""
    kl_form: Annotated[
        Literal["published", "exact"], ReadIf("objective", "distill_kl"), ReadIf("transition", "sde")
    ] = "published"
    """distill_kl: published leaves the step length out of the SDE's variance; exact keeps it."""
    window: Window = Field(default_factory=Window)
    """Which steps are recorded and learned from."""

    def contradictions(self, run: FlowConfig) -> Rules:
        message = (
            "objective is distill_kl and transition is ode, whose steps have no std to divide by; "
            "use transition sde, cps or dance, or objective distill_fm_mse"
        )
        return [(self.objective == "distill_kl" and self.transition == "ode", message)]

    def needs(self) -> Needs:
        return Needs(
            recording=Recording(self.transition, 0.0 if self.transition == "ode" else self.noise_level, self.window),
            reference=any(teacher.is_start for teacher in self.teachers),
            teachers=tuple(self.teachers),
            groups=False,
        )

    def compute_advantages(self, annotated: Scored) -> tuple[Denoising, Metrics]:
        scores = annotated.scores
        return annotated.trace, range_metrics(rewards=scores.reward[~scores.missing])

    def micro_batches(self, batch: Denoising, size: int) -> Iterator[Steps]:
        return batch.steps().split(size)

    def loss(self, part: Steps, roles: FlowRoles) -> Loss:
        import torch

        def predict(role: Role) -> Tensor:
            return role(part.state, part.time, part.conditioning)

        with torch.no_grad():
            targets = [predict(role) for role in roles.teachers]
        velocity = predict(roles.policy)
        total, name = velocity.new_zeros(len(part)), f"actor/{self.objective}_loss"
        values: dict[str, Tensor] = {}
        for i, (teacher, target) in enumerate(zip(self.teachers, targets, strict=True)):
            values[f"{name}/teacher_{i}"] = loss = self._distance(part, velocity, target)
            total = total + teacher.weight * loss
        return summed(total, (values if len(targets) > 1 else {}) | {name: total})

    def size(self, batch: Denoising) -> int:
        return batch.time.numel()

    def _distance(self, part: Steps, velocity: Tensor, target: Tensor) -> Tensor:
        """How far the student is from a teacher at each step: [M]."""
        from burnish.diffusion.steps import transition
        from burnish.rl.surrogates import squared_distance

        if self.objective == "distill_fm_mse":
            return squared_distance(velocity, target, part.share)
        student, teacher = (
            transition(
                self.transition, v, part.state, part.time, part.time_next,
                noise=self.noise_level, t_max=part.time_max, share=part.share,
            )
            for v in (velocity, target)
        )  # fmt: skip
        return mean_kl(student, teacher.mean, published=self.transition == "sde" and self.kl_form == "published")
