"""A reward model that Burnish trained to judge pictures, as a reward of what a generator draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from burnish.language.model.reward_head import about_picture, is_reward_model
from burnish.registry import register
from burnish.rewards.base import Reward, Verdict
from burnish.rewards.text.loaded_options import HeadOptions
from burnish.rewards.text.reading_model import sees
from burnish.types.media import Fit, Media
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from burnish.types.prompt import Prompt


@register("flow reward", "reward_model")
class PictureRewardModel(HeadOptions, Reward):
    """What a reward model that was trained on pictures for prompts (algorithm.question) makes of a picture."""

    has_weights: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    def check(self, prompts: Sequence[Prompt]) -> None:
        folder = self._checked("a reward model that burnish export wrote")
        if not is_reward_model(folder):
            raise UserError(
                f"path of reward {self.name} is {self.path!r}, which has no heads that Burnish trained; train a model "
                "that sees with algorithm=bradley_terry and algorithm.question on pairs of pictures, and export it"
            )
        if not self._about(folder).question or not sees(folder):
            raise UserError(
                f"path of reward {self.name} is {self.path!r}, which was trained to judge responses, and no pictures; "
                "train one with algorithm.question"
            )

    def prepare(self) -> None:
        self._reader(self._folder())

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        reader = self._reader(self._folder())
        about = reader.about
        fit = Fit(min_pixels=about.min_pixels, max_pixels=about.max_pixels)
        questions = []
        for image, prompt in zip(images, prompts, strict=True):
            shown = tuple(replace(media, fit=fit) for media in (*prompt.images, Media.array(image)))
            questions.append(about_picture(about.question, prompt.text, shown))
        encoded = reader.encode(questions)
        lengths = [encoded.table.lengths[row] for row in encoded.index.tolist()]
        longest = min(self.max_length, reader.model.max_positions) - len(reader.model.response_ids(""))
        verdicts = [Verdict(None, (), f"{n} tokens exceed max_length={longest}") for n in lengths]
        rows = sorted((i for i, n in enumerate(lengths) if n <= longest), key=lambda i: lengths[i])
        for start in range(0, len(rows), self.batch_size):
            some = rows[start : start + self.batch_size]
            found = reader.scores(encoded.select(some), [""] * len(some), [None] * len(some))
            for i, (values,) in zip(some, found, strict=True):
                verdicts[i] = Verdict(self._sum(about, values))
        return verdicts
