"""A tool that draws: ``burnish.environments.drawing:Draw``, any text-to-image pipeline that Burnish trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image


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
    def check(path: str, **_: Any) -> None:
        """Refuse a directory that is not a pipeline, before anything is loaded."""
        from burnish.diffusion.options import ModelOptions
        from burnish.diffusion.pipeline.loading import read_index

        read_index(ModelOptions(path=path))

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
