"""Any text-to-image pipeline for a language model: as a tool that draws, or to learn to write its prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from burnish.environments.base import Observation
from burnish.registry import Choice
from burnish.rewards.remote import problem
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

    from burnish.types.prompt import Prompt


ALONE = Lock()  # dialogues of several threads share a pipeline, whose scheduler knows at which step it is


class Draw:
    """A pipeline that draws what the policy asks for; the policy sees the image in its next turn."""

    def __init__(
        self,
        path: str,
        *,
        dtype: Literal["float32", "bfloat16"] = "float32",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        **arguments: Any,
    ) -> None:
        """Load a pipeline, and draw with it once, in two denoising steps.

        Args:
            path: directory in diffusers layout.
            dtype: precision of its weights.
            device: where it computes.
            arguments: of the pipeline's call, such as num_inference_steps, guidance_scale, height and width.

        Raises:
            UserError: it can't be loaded, or does not draw images from texts with these arguments.
        """
        from burnish.diffusion.options import ModelOptions
        from burnish.diffusion.pipeline.loading import load_model

        self.model: Any = load_model(ModelOptions(path=path, dtype=dtype, device=device), frozen=True)
        self.arguments = arguments
        self._cast = dtype != "float32"
        try:
            self._draw("a picture", 0, **arguments | {"num_inference_steps": 2})
        except (TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{path} does not draw an image from a text with {arguments}: {type(error).__name__}: {error}"
            ) from error

    @staticmethod
    def check(path: str, *, dtype: Any = "float32", device: Any = "auto", **arguments: Any) -> None:
        """Refuse a directory that is not a pipeline, and what its call does not take, before anything is loaded."""
        from burnish.diffusion.options import ModelOptions, RolloutOptions
        from burnish.diffusion.pipeline.arguments import Arguments
        from burnish.diffusion.pipeline.loading import read_index

        try:
            _, index = read_index(ModelOptions(path=path, dtype=dtype, device=device))
        except ValidationError as error:
            raise UserError(f"environment.arguments of {path}: {problem(error)}") from None
        call = Arguments.of_index(index, RolloutOptions())
        unknown = [name for name in arguments if name not in call.parameters]
        if unknown and not any(one.kind is one.VAR_KEYWORD for one in call.parameters.values()):
            raise UserError(
                f"environment.arguments has {unknown[0]}, which a {call.kind.__name__} does not take; it takes "
                f"{', '.join(name for name in call.parameters if name != 'self')}"
            )

    def __call__(self, prompt: str, *, seed: int) -> Image:
        """Draw an image.

        Args:
            prompt: what it shows
        """
        return self._draw(prompt, seed, **self.arguments)

    def _draw(self, prompt: str, seed: int, **arguments: Any) -> Image:
        import torch

        noise = torch.Generator().manual_seed(seed)
        device = self.model.device
        with torch.inference_mode(), torch.autocast(device.type, self.model.compute, enabled=self._cast):
            drawn = self.model.pipeline(prompt=prompt, generator=noise, output_type="pil", **arguments)
        return drawn.images[0]  # type: ignore[no-any-return]


class PromptEnhancer:
    """An environment in which the policy writes the prompt of an image, and the reward is the image's.

    The images of a group begin with the same noise, so that their prompts alone make the difference. What is asked for
    is the record's answer, where it has one, since the question may be an instruction around it.
    """

    def __init__(self, path: str, reward: str | Mapping[str, Any], **arguments: Any) -> None:
        """Check the pipeline and the reward; both are loaded for the first response, once in a process.

        Args:
            path: directory of the pipeline.
            reward: on images, as in a recipe of generators: its name, or its name with options.
            arguments: of ``Draw``.

        Raises:
            UserError: the directory is not a pipeline, or takes no such argument; or a reward's option is wrong.
            pydantic_core.PydanticCustomError: there is no such reward.
        """
        Draw.check(path, **arguments)
        try:
            Choice("flow reward").made(reward)
        except ValidationError as error:
            raise UserError(f"environment.arguments.reward is {reward}: {problem(error)}") from None
        self._loaded = json.dumps({"path": path, **arguments}), json.dumps(reward)

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self.prompt, self.seed = replace(prompt, text=prompt.answer or prompt.text), seed
        return Observation()

    def step(self, response: str) -> Observation:
        import numpy as np

        with ALONE:
            draw, reward = _loaded(*self._loaded)
            image = draw(response.strip(), seed=self.seed)
        (score,) = reward([np.asarray(image.convert("RGB"))], [self.prompt])
        if score.value is None:
            raise ValueError(f"the image has no reward: {score.note}")
        return Observation([image], reward=score.value, done=True)


@cache
def _loaded(drawing: str, reward: str) -> tuple[Draw, Any]:
    """The pipeline and the reward of all dialogues of this process."""
    made = Choice("flow reward").made(json.loads(reward))
    made.prepare()
    return Draw(**json.loads(drawing)), made
