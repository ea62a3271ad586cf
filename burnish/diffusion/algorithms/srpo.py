"""SRPO: rewards relative to words, climbed from any noise level (Shen et al. 2025, arXiv:2509.06942)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from burnish.diffusion.algorithms.base import Needs, Recording
from burnish.diffusion.algorithms.draft import RewardGradients
from burnish.diffusion.algorithms.policy_gradient import Window
from burnish.options import Finite, Fraction, NonNegative
from burnish.registry import register

if TYPE_CHECKING:
    from burnish.diffusion.paths import Realigned
    from burnish.diffusion.roles import FlowRoles
    from burnish.types.prompt import Prompt
    from burnish.types.rollout import Loss, Scored

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

    @model_validator(mode="after")
    def _levels_lie_between(self) -> Self:
        low, high = self.time_range
        if not low < high < 1:
            raise ValueError(
                f"time_range is [{low}, {high}]; it must rise, and end below 1, where nothing of the sample is left"
            )
        return self

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
