"""A run in which a unified model learns to draw token by token: what rewards score, and reports show, are images."""

from __future__ import annotations

from typing import Any

from burnish.language.assembly import LanguageAssembly
from burnish.language.config import ImageTokenConfig
from burnish.language.engine import sampled_for
from burnish.language.evaluate import LanguageEvaluation
from burnish.language.model.loading import check_draws, image_side
from burnish.tasks.drawings import DrawnEvaluation, shades
from burnish.tasks.evaluate import Evaluated
from burnish.types.samples import coarse
from burnish.utils.errors import UserError


class ImageTokenEvaluation(DrawnEvaluation, LanguageEvaluation):
    """Draws token by token."""

    def sampled(self, job: Any) -> Evaluated:
        assembly = self.assembly
        _, responses, scoring = sampled_for(job, assembly.engine, self.scorer, assembly.tell)
        images = [response.image for response in responses]
        kept = (job.group < self.shown).tolist()
        shown = [image if keep else None for image, keep in zip(images, kept, strict=True)]
        return Evaluated(scoring.scores(assembly.stop.check), list(map(coarse, images)), shown)


class ImageTokenAssembly(LanguageAssembly):
    """Prompts, networks, engine and source of a unified model that draws."""

    config: ImageTokenConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.evaluation = self.suite_runner = ImageTokenEvaluation

    def check_data(self) -> None:
        config = self.config
        check_draws(config.model, config.rollout.max_new_tokens)
        refused = {label: reward.refusal("image") for label, reward in config.rewards.items()}
        refused |= {
            label: "it reads latents, of which images of tokens have none"
            for label, reward in config.rewards.items()
            if "latents" in reward.required_fields()
        }
        if problems := [f"rewards.{label}: {problem}" for label, problem in refused.items() if problem]:
            raise UserError("\n".join([*problems, "leave these rewards or options out"]))
        prompts, size = self.train_prompts + self.val_prompts, image_side(config.model)
        for reward in config.rewards.values():
            reward.check_size(prompts, size, size)
        if prompt := next((one for one in prompts.kinds if one.media), None):
            raise UserError(f"{prompt.name} shows or plays something, but {config.model.path} draws from text alone")
        super().check_data()

    def dummy_sample(self) -> Any:
        side = image_side(self.config.model)
        return shades(side, side)
