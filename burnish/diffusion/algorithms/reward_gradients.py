"""Reward back-propagation through the last denoising steps: DRaFT (Clark et al. 2024, arXiv:2309.17400), and ReFL
(Xu et al. 2023, arXiv:2304.05977), which jumps from a random step to the end; and SRPO (Shen et al. 2025,
arXiv:2509.06942), which climbs rewards relative to words from any noise level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from burnish.diffusion.algorithms.base import Needs, Recording
from burnish.diffusion.algorithms.policy_gradient import Window, summed
from burnish.options import Count, Finite, Fraction, NonNegative, Rules
from burnish.registry import ReadIf, options, register
from burnish.rl.algorithm import Algorithm, Metrics, range_metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.diffusion.config import FlowConfig
    from burnish.diffusion.paths import Ends, Realigned
    from burnish.diffusion.roles import FlowRoles
    from burnish.types.prompt import Prompt
    from burnish.types.rollout import Loss, Scored


@options
class RewardGradients(Algorithm):
    """Base of those that climb a differentiable reward: its gradient runs through decoding and denoising steps."""

    ceiling: Finite | None = None
    """Nothing is learned from images whose reward is above this (ReFL's hinge); null has no ceiling."""
    kl_coef: NonNegative = 0.0
    """Weight of the squared distance to the reference's velocity along those steps; 0 needs no reference."""
    recompute: bool = False
    """Keep only the states between steps and compute each step again in the backward pass: memory of one step for
    any number of them, about a third more time."""

    def compute_advantages(self, annotated: Scored) -> tuple[Scored, Metrics]:
        present = (~annotated.scores.missing).nonzero().flatten()
        return annotated.select(present), range_metrics(rewards=annotated.scores.reward[present])

    def climbed(self, reward: Tensor, distance: Tensor | None) -> Loss:
        """The loss of rewards [M] that have gradients, and of distances to the reference [M]."""
        loss = -reward if self.ceiling is None else (self.ceiling - reward).relu()
        values = {"actor/reward": reward, "actor/reward_loss": loss}
        if distance is not None:
            values["actor/ref_kl_loss"] = distance
            loss = loss + self.kl_coef * distance
        return summed(loss, values)

    def walk(self, part: Ends, roles: FlowRoles) -> tuple[Tensor, Tensor | None]:
        """Latents at the last of the times, with gradients, and the mean distance to the reference on the way if it is
        asked for."""
        import torch
        from torch.utils.checkpoint import checkpoint

        from burnish.diffusion.steps import transition
        from burnish.rl.surrogates import squared_distance

        x, distances = part.state, []
        for k in range(part.times.shape[1] - 1):
            given = (part.times[:, k], part.conditioning)
            velocity = (
                checkpoint(roles.policy, x, *given, use_reentrant=False) if self.recompute else roles.policy(x, *given)
            )
            if self.kl_coef > 0:
                with torch.no_grad():
                    reference = roles.reference(x, *given)
                distances.append(squared_distance(velocity, reference, part.share))
            x = transition("ode", velocity, x, part.times[:, k], part.times[:, k + 1], noise=0.0, t_max=1.0).mean
        return x, torch.stack(distances).mean(0) if distances else None


@register("flow algorithm", "draft")
class Draft(RewardGradients):
    """Climb a differentiable reward: its gradient runs through decoding and the last denoising steps."""

    kind: Literal["draft", "draft_lv", "refl"] = "draft"
    """draft: through the last steps; draft_lv: through the last step from several fresh noises, for less variance;
    refl: from a random step to the end in a single one."""
    last_steps: Annotated[Count, ReadIf("kind", "draft")] = 1
    """draft: steps that gradients run through (K of DRaFT-K); earlier ones are taken as given."""
    renoised: Annotated[Count, ReadIf("kind", "draft_lv")] = 2
    """draft_lv: times that each finished sample is noised again."""
    renoise_level: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, ReadIf("kind", "draft_lv")] = None
    """draft_lv: noise level t that it is noised to, from which one step leads to the end; null takes the last level of
    the schedule that is 0.02 or more, mostly that of its last step. (Stable Diffusion 3's own ends with a step from
    0.009, which can change nothing.)"""
    window: Annotated[Window, ReadIf("kind", "refl")] = Field(default_factory=lambda: Window(kind="random", size=1))
    """refl: which step is drawn, from which one step leads to the end; a window of that size."""

    def contradictions(self, run: FlowConfig) -> Rules:
        size = self.window.size
        return [(size != 1, f"window.size is {size}, but refl jumps from a single step; set it to 1")]

    def needs(self) -> Needs:
        last = Window(kind="last", size=self.last_steps)
        window = {"draft": last, "draft_lv": None, "refl": self.window}[self.kind]
        return Needs(
            recording=Recording("ode", 0.0, window) if window else None,
            euler_steps=self.last_steps if self.kind == "draft" else 0,
            reference=self.kl_coef > 0, groups=False, reward_gradients=True,
        )  # fmt: skip

    def micro_batches(self, batch: Scored, size: int) -> Iterator[Ends]:
        from burnish.diffusion.paths import Ends

        # a row passes as many forwards as there are steps, and all of them are kept for the backward pass
        held = self.last_steps if self.kind == "draft" and not self.recompute else 1
        for part in batch.split(max(size // self._copies, 1)):
            ends = (
                Ends.noised_again(part, self.renoised, self.renoise_level) if self.kind == "draft_lv"
                else Ends.recorded(part)
            )  # fmt: skip
            yield from ends.split(max(size // held, 1))

    def loss(self, part: Ends, roles: FlowRoles) -> Loss:
        latents, distance = self.walk(part, roles)
        return self.climbed(roles.reward(roles.images(latents, part.conditioning), part.prompts), distance)

    def size(self, batch: Scored) -> int:
        return len(batch) * self._copies

    @property
    def _copies(self) -> int:
        return self.renoised if self.kind == "draft_lv" else 1


Words = Annotated[tuple[str, ...], Field(min_length=1)]
Strengths = tuple[NonNegative, NonNegative]


@register("flow algorithm", "srpo")
class SRPO(RewardGradients):
    """Climb what a reward makes of positive words in the prompt beyond what it makes of negative ones. Finished samples
    are noised by the noise they came from, which leads back to a clean sample from any noise level in one step."""

    positive: Words = ("Natural-lighting", "Detail", "Detailed", "Real")
    """Words before the prompt that the reward should find; each update has the next one."""
    negative: Words = ("Concept art", "Painting", "Anime", "Flat", "Oil")
    """Words before the prompt that it should not find; each update has the next one."""
    time_range: tuple[Fraction, Fraction] = (0.75, 0.9643)
    """Noise levels t that samples are brought to."""
    emphasis: tuple[Strengths, Strengths] = ((0.1, 0.25), (0.3, 0.01))
    """How much more the words count that are climbed than those that are left, at the ends of time_range: in steps
    towards the clean sample, which climb the positive words, and in steps towards noise, which climb the negative
    ones."""
    ceiling: Finite | None = 0.7
    """Nothing is learned from images whose reward is above this; null has no ceiling."""

    def contradictions(self, run: FlowConfig) -> Rules:
        low, high = self.time_range
        message = f"time_range is [{low}, {high}]; it must rise, and end below 1, where nothing of the sample is left"
        return [(not low < high < 1, message)]

    def needs(self) -> Needs:
        first = Window(kind="fixed", size=1)  # where the noise of a sample is its state
        return Needs(
            recording=Recording("ode", 0.0, first), reference=self.kl_coef > 0, groups=False, reward_gradients=True
        )

    def micro_batches(self, batch: Scored, size: int) -> Iterator[Realigned]:
        from burnish.diffusion.paths import Realigned

        for part in batch.split(max(size // 2, 1)):
            yield from Realigned.of(part, self.time_range, self.emphasis).split(size)

    def loss(self, part: Realigned, roles: FlowRoles) -> Loss:
        import torch

        latents, distance = self.walk(part, roles)
        images = roles.images(part.recovered(latents), part.conditioning)
        positive, negative = (
            roles.reward(images, with_words(part.prompts, words[(part.update - 1) % len(words)]))
            for words in (self.positive, self.negative)
        )
        climbed, left = (torch.where(part.denoises, *both) for both in ((positive, negative), (negative, positive)))
        return self.climbed((1 + part.emphasis) * climbed - left, distance)

    def size(self, batch: Scored) -> int:
        return 2 * len(batch)


def with_words(prompts: Sequence[Prompt], words: str) -> list[Prompt]:
    """Prompts that begin with words, as rewards read them."""
    return [replace(prompt, text=f"{words}. {prompt.text}") for prompt in prompts]
