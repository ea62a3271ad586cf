"""What a network with published weights reads: images as Pillow resizes them, and with gradients; prompts as tokens.

Both ways of images agree within a third of a level of 255 in the mean. That needs interpolation with antialiasing,
whose cubic kernel is Pillow's, and a clamp, since Pillow clamps what overshoots; without antialiasing torch has another
kernel, and images that are made smaller differ by tens of levels.
"""

from __future__ import annotations

import html
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.reading import understood
from burnish.utils.weights import tokenizer_complaint

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Filter = Literal["bilinear", "bicubic"]
FILE = "preprocessor_config.json"
FILTERS: dict[int, Filter] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
LEVEL = 1 / 255
STEPS = {"do_resize": True, "do_rescale": True, "rescale_factor": LEVEL, "do_normalize": True, "do_pad": False}
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How an image becomes a square of pixels.

    crop: the shorter side becomes ``shortest``, and the middle is cut out. stretch: both sides become ``size``. pad:
    the longer side becomes ``size``, with black beside the shorter one, on floats, as HPSv2 does it.
    """

    size: int
    fit: Literal["crop", "stretch", "pad"] = "crop"
    shortest: int | None = None  # of a crop; None is ``size``
    filter: Filter = "bicubic"
    mean: Sequence[float] = CLIP_MEAN
    std: Sequence[float] = CLIP_STD
    rounded: bool = (
        False  # the crop begins at the nearest pixel, half to even, as torchvision's; else at the one before
    )

    def images(self, images: Sequence[np.ndarray]) -> Tensor:
        """Images uint8 [H, W, 3], whose sizes may differ: [B, 3, size, size], normalised."""
        import numpy as np
        import torch

        if self.fit == "pad":  # the published way has floats before it makes them smaller
            return torch.cat([self(torch.tensor(image).permute(2, 0, 1)[None] * LEVEL) for image in images])
        pixels = np.stack([self._by_pillow(image) for image in images])
        return self._normalised(torch.from_numpy(pixels).permute(0, 3, 1, 2) * LEVEL)

    def __call__(self, images: Tensor) -> Tensor:
        """The same of RGB in [0, 1], [B, 3, H, W], with gradients."""
        import torch.nn.functional as F

        wanted = self._resized(*images.shape[-2:])
        x = images.float()
        if wanted != tuple(images.shape[-2:]):
            x = F.interpolate(x, wanted, mode=self.filter, antialias=True, align_corners=False)
        if self.fit == "pad":
            high, wide = self.size - wanted[0], self.size - wanted[1]
            return self._normalised(F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2)))
        top, left = self._corner(*wanted)
        return self._normalised(x[..., top : top + self.size, left : left + self.size].clamp(0, 1))

    def _by_pillow(self, image: np.ndarray) -> np.ndarray:
        import numpy as np
        from PIL import Image

        height, width = self._resized(*image.shape[:2])
        how = Image.Resampling.BICUBIC if self.filter == "bicubic" else Image.Resampling.BILINEAR
        resized = np.asarray(Image.fromarray(image).resize((width, height), how))
        top, left = self._corner(height, width)
        return resized[top : top + self.size, left : left + self.size]

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width before the crop or the padding."""
        if self.fit == "stretch":
            return self.size, self.size
        if self.fit == "pad":
            scale = self.size / max(height, width)
            return max(round(height * scale), 1), max(round(width * scale), 1)
        short = self.shortest or self.size
        long = int(short * max(height, width) / min(height, width))
        return (short, long) if height <= width else (long, short)

    def _corner(self, height: int, width: int) -> tuple[int, int]:
        """Where the crop begins."""
        over = (height - self.size) / 2, (width - self.size) / 2
        return (round(over[0]), round(over[1])) if self.rounded else (int(over[0]), int(over[1]))

    def _normalised(self, x: Tensor) -> Tensor:
        import torch

        from burnish.types.batch import to_device

        mean, std = (to_device(torch.tensor(v, dtype=x.dtype), x.device).view(3, 1, 1) for v in (self.mean, self.std))
        return (x - mean) / std


def read_preprocessing(folder: Path, usual: Preprocessing) -> Preprocessing:
    """What a model's folder says of images; ``usual`` where it says nothing.

    Raises:
        UserError: it asks for something that is not done here.
    """
    file = folder / FILE
    settings = read_object(file) if file.is_file() else {}
    if other := [
        f"{name} is {settings[name]}" for name, done in STEPS.items() if settings.get(name) not in (None, done)
    ]:
        raise UserError(f"{file} asks for what is not done to images here: {', '.join(other)}; give another model")
    with understood(f"{file} can't be read"):
        colours = replace(
            usual,
            mean=settings.get("image_mean") or usual.mean,
            std=settings.get("image_std") or usual.std,
            filter=usual.filter if settings.get("resample") is None else FILTERS[settings["resample"]],
        )
        size = settings.get("size")
        if size is None:
            return colours
        if settings.get("do_center_crop", usual.fit == "crop"):
            return replace(colours, fit="crop", shortest=_side(size), size=_side(settings.get("crop_size", size)))
        return replace(colours, fit="stretch", size=_side(size))


def _side(size: int | dict[str, int]) -> int:
    """The side of a square, or the shorter one, as processors of transformers name it."""
    sides = {"": size} if isinstance(size, int) else size
    if "longest_edge" in sides or len(set(sides.values())) > 1:
        raise ValueError(f"a size of {size}")
    return next(iter(sides.values()))


def as_open_clip(text: str) -> str:
    """A prompt as open_clip's tokenizer cleans it: broken encodings mended, HTML entities resolved, twice.

    The tokenizer of transformers leaves all of that, so that typographic quotes become other tokens.
    """
    import ftfy

    return " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())


def as_siglip(text: str) -> str:
    """A prompt as SigLIP's tokenizer cleans it: small letters, no punctuation."""
    return " ".join(text.lower().translate(str.maketrans("", "", string.punctuation)).split())


@cache
def tokenizer_of(folder: Path) -> Any:
    """The tokenizer of a folder, loaded once.

    Raises:
        UserError: there is none, or it can't be loaded.
    """
    from transformers import AutoTokenizer

    if complaint := tokenizer_complaint(folder):
        raise UserError(complaint)
    with understood(f"the tokenizer in {folder} can't be loaded"):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def token_ids(tokenizer: Any, texts: Sequence[str], length: int, *, fill: bool = False) -> tuple[Tensor, Tensor]:
    """Tokens and mask [B, T] of texts, none longer than ``length``.

    Args:
        tokenizer: of transformers.
        texts: a special token written in one is text, as any other word.
        length: that longer texts are cut to; their last token stays the end.
        fill: pad all to ``length``, not to the longest.
    """
    encoded = tokenizer(
        list(texts), padding="max_length" if fill else True, truncation=True, max_length=length, return_tensors="pt",
        split_special_tokens=True, return_attention_mask=True,
    )  # fmt: skip
    return encoded["input_ids"], encoded["attention_mask"]
