"""The arguments with which a tiny pipeline is called: small sizes, and images where it needs some."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.diffusion.pipeline.loading import classes_of
from burnish.models.modular import pipeline_class
from burnish.models.processors import processors_without_torchvision
from burnish.models.tiny import Tiny
from burnish.utils.hub import MODULAR, part_of
from burnish.utils.json_text import read_object
from burnish.utils.weights import quietly

if TYPE_CHECKING:
    from PIL.Image import Image

PROMPT = "a red fox in the snow"


def example_call(tiny: Tiny, pipeline: Any, *, steps: int, seed: int) -> dict[str, Any]:
    """Arguments of a pipeline's own call.

    Args:
        tiny: its description.
        pipeline: built or loaded from it.
        steps: of denoising.
        seed: of noise and images.
    """
    import torch

    taken = inspect.signature(type(pipeline).__call__).parameters
    size = {"height": tiny.height, "width": tiny.width, "num_frames": tiny.num_frames}
    call: dict[str, Any] = {name: value for name, value in size.items() if value is not None}
    if tiny.prompt:
        call["prompt"] = PROMPT
    if "num_inference_steps" in taken:
        call["num_inference_steps"] = steps
    call["generator"] = torch.Generator().manual_seed(seed)
    call |= {name: media(kind, tiny, seed) for name, kind in tiny.inputs.items()}
    return call | dict(tiny.call)


def load(folder: Path) -> Any:
    """A pipeline as anyone would load it, in float32."""
    import diffusers
    import torch

    if (folder / MODULAR).is_file():
        with quietly():
            blocks = diffusers.ModularPipeline.from_pretrained(folder)
            blocks.load_components(dtype=torch.float32)
            parts = {name: part_of(entry) for name, entry in read_object(folder / MODULAR).items()}
            # some blocks name other classes than the folder, which could not be loaded, or only in part
            given = processors_without_torchvision(folder, parts)
            for name, kind in classes_of(parts).items():
                if name not in given and type(getattr(blocks, name)) is not kind:
                    given[name] = kind.from_pretrained(folder / name)
            blocks.update_components(**given)
        # called as others are: what guides takes its scale from an argument
        blocks.__class__ = pipeline_class(type(blocks).__name__)
        blocks.set_progress_bar_config(disable=True)
        return blocks
    parts = processors_without_torchvision(folder, read_object(folder / "model_index.json"))
    with quietly():
        pipeline = diffusers.DiffusionPipeline.from_pretrained(
            folder, torch_dtype=torch.float32, local_files_only=True, **parts
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def media(kind: str, tiny: Tiny, seed: int) -> Any:
    """An image, a mask, frames or text, as an argument of a call takes them."""
    height, width = tiny.height or 32, tiny.width or 32
    if kind == "text":
        return PROMPT
    if kind == "mask":
        return mask(height, width)
    if kind == "image":
        return noise_image(height, width, seed)
    count = 2 if kind == "images" else tiny.num_frames or 5
    return [mask(height, width) if kind == "video mask" else noise_image(height, width, seed + i) for i in range(count)]


def noise_image(height: int, width: int, seed: int) -> Image:
    """Colours of a seed, smooth from corner to corner."""
    import numpy as np
    from PIL import Image

    corners = np.random.default_rng(seed).integers(0, 256, (2, 2, 3)).astype(np.uint8)
    return Image.fromarray(corners).resize((width, height), Image.Resampling.BILINEAR)


def mask(height: int, width: int) -> Image:
    """White where the call may draw: the right half."""
    from PIL import Image

    drawn = Image.new("L", (width, height), 0)
    drawn.paste(255, (width // 2, 0, width, height))
    return drawn
