"""A reward model that Burnish trained to judge pictures, as a reward of what a generator draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from burnish.language.model.reward_head import about_picture, is_reward_model
from burnish.registry import register
from burnish.rewards.base import Reward, Score
from burnish.rewards.networks.language import HeadOptions, sees
from burnish.types.media import Fit, Media
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from burnish.types.prompt import Prompt


@register("flow reward", "reward_model")
class PictureRewardModel(HeadOptions, Reward):
    """What a reward model that was trained on pictures for prompts (algorithm.question) makes of a picture."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        if not is_reward_model(self.folder()):
            raise UserError(
                f"path of reward {self.name} is {self.path!r}, which has no heads that Burnish trained; train a model "
                "that sees with algorithm=bradley_terry and algorithm.question on pairs of pictures, and export it"
            )
        if not self._about().question or not sees(self.folder()):
            raise UserError(
                f"path of reward {self.name} is {self.path!r}, which was trained to judge responses, and no pictures; "
                "train one with algorithm.question"
            )

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Score]:
        about = self._about()
        fit = Fit(min_pixels=about.min_pixels, max_pixels=about.max_pixels)
        questions = []
        for image, prompt in zip(images, prompts, strict=True):
            shown = tuple(replace(media, fit=fit) for media in (*prompt.images, Media.array(image)))
            questions.append(about_picture(about.question, prompt.text, shown))
        scores = self._by_heads(questions, [""] * len(images), [None] * len(images), media=True)
        return [Score(None, row) if isinstance(row, str) else Score(row[0]) for row in scores]
