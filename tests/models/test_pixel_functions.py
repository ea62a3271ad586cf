"""What stands in for torchvision gives its numbers, and nobody who asks is told that it is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

from burnish.models import pixel_functions as ours

MODES = ("bilinear", "bicubic", "nearest", "nearest-exact")


def images() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = [(3, 30, 20), (2, 3, 17, 40), (1, 2, 3, 33, 31)]
    small = [torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8) for shape in shapes]
    return [*small, *(torch.rand(shape, generator=draw) for shape in shapes)]


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")
@pytest.mark.parametrize("image", images(), ids=lambda image: f"{image.dtype} {list(image.shape)}")
def test_every_function_gives_the_numbers_of_torchvision(image):
    from torchvision.transforms.v2 import functional as theirs

    for mode in MODES:
        way, their_way = ours.InterpolationMode(mode), theirs.InterpolationMode(mode)
        for size in ((16, 16), (50, 41), tuple(image.shape[-2:])):
            for antialias in (True, False):
                expected = theirs.resize(image, list(size), interpolation=their_way, antialias=antialias)
                same(ours.resize(image, size, interpolation=way, antialias=antialias), expected)
    for padding in ([0, 0, 5, 3], [1, 2, 3, 4], 2, [2, 3]):
        for fill in (0, 7, [1, 2, 3]):
            same(ours.pad(image, padding, fill=fill), theirs.pad(image, padding, fill=fill))
        for mode in ("edge", "reflect"):
            same(ours.pad(image, padding, padding_mode=mode), theirs.pad(image, padding, padding_mode=mode))
    for kind in (torch.float32, torch.uint8):
        same(ours.to_dtype(image, kind, scale=True), theirs.to_dtype(image, kind, scale=True))
    same(ours.rgb_to_grayscale(image, 3), theirs.rgb_to_grayscale(image, 3))
    same(ours.crop(image, 1, 2, 10, 9), theirs.crop(image, 1, 2, 10, 9))
    scaled = ours.to_dtype(image, torch.float32, scale=True)
    same(
        ours.normalize(scaled, [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]),
        theirs.normalize(scaled, [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]),
    )


def test_resizing_keeps_what_is_constant_and_its_type():
    for image in (torch.full((2, 3, 9, 7), 200, dtype=torch.uint8), torch.full((3, 9, 7), 0.25)):
        for mode in ours.InterpolationMode:
            if mode.value in (*MODES, "lanczos"):
                resized = ours.resize(image, (20, 5), interpolation=mode)
                assert resized.shape == (*image.shape[:-2], 20, 5)
                torch.testing.assert_close(resized, torch.full_like(resized, image.flatten()[0].item()))
    steps = torch.arange(4.0).repeat(3, 4, 1)
    # half as wide: a triangle over the three nearest pixels, of weights 3, 3 and 1
    torch.testing.assert_close(ours.resize(steps, (4, 2))[0, 0], torch.tensor([5 / 7, 16 / 7]))
    assert torch.equal(ours.resize(steps, (4, 2), interpolation=2), ours.resize(steps, (4, 2)))


def test_borders_rectangles_and_colours():
    image = torch.arange(12.0).reshape(3, 2, 2)
    padded = ours.pad(image, [1, 0, 0, 2], fill=[7, 8, 9])
    assert padded.shape == (3, 4, 3)
    assert padded[:, 3].tolist() == [[7.0] * 3, [8.0] * 3, [9.0] * 3]
    assert torch.equal(ours.crop(padded, 0, 1, 2, 2), image)
    assert torch.equal(ours.grayscale_to_rgb(image[:1]), image[:1].repeat(3, 1, 1))
    assert ours.rgb_to_grayscale(torch.ones(3, 1, 1)).item() == pytest.approx(0.9999)
    colours = np.arange(18, dtype=np.uint8).reshape(3, 2, 3)
    assert torch.equal(ours.pil_to_tensor(Image.fromarray(colours)), torch.from_numpy(colours).permute(2, 0, 1))
    assert np.array_equal(ours.to_pil_image(torch.from_numpy(colours).permute(2, 0, 1)), colours)
    assert np.array_equal(ours.to_pil_image(torch.full((1, 2, 3), 0.5)), np.full((2, 3), 127))
    whole = ours.to_dtype(torch.arange(256, dtype=torch.uint8), torch.float32, scale=True)
    assert whole[[0, 255]].tolist() == [0.0, 1.0]
    assert torch.equal(ours.to_dtype(whole, torch.uint8, scale=True), torch.arange(256, dtype=torch.uint8))


def test_what_has_no_stand_in_says_what_to_install():
    functions = ours._functional()
    assert functions.resize is ours.resize
    with pytest.raises(ImportError, match="torchvision's gaussian_blur, which is not installed; run: pip install"):
        functions.gaussian_blur  # noqa: B018
    assert not hasattr(functions, "__wrapped__")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
def test_nobody_is_told_that_torchvision_is_installed():
    code = """
import sys
from importlib.util import find_spec
from burnish.models.language.processors import real_class
before = set(sys.modules)
video = real_class("Qwen3VLVideoProcessor")
real_class("Llama4ImageProcessor"), real_class("PixtralProcessor"), real_class("Ernie4_5_VLMoeVideoProcessor")
from transformers.utils import is_torchvision_available, is_torchvision_v2_available
print([name for name in sys.modules if name.startswith("torchvision")], find_spec("torchvision"))
print(is_torchvision_available(), is_torchvision_v2_available(), video.__module__)
import transformers
print(transformers.Qwen2VLVideoProcessor.is_dummy, transformers.AutoImageProcessor.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == [
        "[] None", "False False transformers.models.qwen3_vl.video_processing_qwen3_vl", "True AutoImageProcessor",
    ]  # fmt: skip
