"""Rewards that are statistics of pixels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from burnish.registry import options, register
from burnish.rewards.base import NOTHING, Compared, Reward, RewardInputs, Score
from burnish.types.samples import LUMA, Kind, Sample, coarse

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt


def size(image: np.ndarray) -> float:
    """Size of an image as JPEG of quality 95, in kB of 1000 bytes."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, format="JPEG", quality=95)
    return file.tell() / 1000


@options
class ImageStatistic(Reward):
    """Base of statistics of single images."""

    higher_is_better: ClassVar[bool] = False

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Score]:
        return [Score(self.of(image)) for image in images]

    @abstractmethod
    def of(self, image: np.ndarray) -> float:
        """Of an image, uint8 [H, W, 3]."""


@register("flow reward", "jpeg_compressibility")
class JpegCompressibility(ImageStatistic):
    """Minus the size as JPEG of quality 95, in units of 500 kB: higher for images with less detail."""

    def of(self, image: np.ndarray) -> float:
        return -size(image) / 500


@register("flow reward", "jpeg_incompressibility")
class JpegIncompressibility(ImageStatistic):
    """The size as JPEG of quality 95, in units of 500 kB: higher for images with more detail."""

    def of(self, image: np.ndarray) -> float:
        return size(image) / 500


@register("flow reward", "border_darkness")
class BorderDarkness(ImageStatistic):
    """Mean of 1 - luminance over the border of one pixel, from 0 (white) to 1 (black). For weight 0."""

    def differentiable(self, images: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        import torch

        from burnish.types.batch import to_device

        ring, luma = (
            to_device(torch.tensor(value, dtype=images.dtype), images.device)
            for value in (self._ring(*images.shape[-2:]), LUMA)
        )
        luminance = (images * luma.view(1, 3, 1, 1)).sum(1)
        return 1 - (luminance * ring).sum((1, 2)) / ring.sum()

    def of(self, image: np.ndarray) -> float:
        import numpy as np

        luminance = image[self._ring(*image.shape[:2])].astype(np.float64) @ np.array(LUMA) / 255
        return float(1 - luminance.mean())

    def _ring(self, height: int, width: int) -> np.ndarray:
        """Which pixels are the border: [height, width] bool."""
        import numpy as np

        ring = np.ones((height, width), dtype=bool)
        ring[1:-1, 1:-1] = False
        return ring


@register("flow reward", "dark_share")
class DarkShare(ImageStatistic):
    """Share of the pixels whose luminance (0.299 R + 0.587 G + 0.114 B, white is 1) is below 0.1."""

    def of(self, image: np.ndarray) -> float:
        return float((luminance(image) < 0.1).mean())


@register("flow reward", "brightness")
class Brightness(ImageStatistic):
    """Mean luminance: 0 for black, 1 for white."""

    def of(self, image: np.ndarray) -> float:
        return float(luminance(image).mean(dtype="float64"))


@register("flow reward", "high_frequency")
class HighFrequency(ImageStatistic):
    """Share of an image's contrast that is lost at half its size: 1 - var(means of 2 x 2 pixels) / var(pixels) of
    luminance. 0 for one colour or smooth images, 1 for a chessboard of single pixels; noise has three quarters."""

    def of(self, image: np.ndarray) -> float:
        shade = luminance(image)
        high, wide = (length // 2 for length in shade.shape)
        if not high or not wide:
            return 0.0
        shade = shade[: 2 * high, : 2 * wide]
        contrast = float(shade.var(dtype="float64"))
        halved = shade.reshape(high, 2, wide, 2).mean((1, 3), dtype="float64")
        # at next to no variance there is nothing to lose
        return float(max(1 - float(halved.var()) / contrast, 0.0)) if contrast > 1e-8 else 0.0


@register("flow reward", "file_size")
class FileSize(ImageStatistic):
    """Bits per pixel of an image as JPEG of quality 95: how much is in it, whatever that is."""

    def of(self, image: np.ndarray) -> float:
        return float(8000 * size(image) / (image.shape[0] * image.shape[1]))


@register("flow reward", "edge_density")
class EdgeDensity(ImageStatistic):
    """Share of the pairs of neighbouring pixels, beside and below each other, whose luminance differs by more than
    0.1: 0 for one colour, 1 for a chessboard."""

    def of(self, image: np.ndarray) -> float:
        import numpy as np

        shade = luminance(image)
        edges = sum(int((np.abs(np.diff(shade, axis=axis)) > 0.1).sum()) for axis in (0, 1))
        pairs = 2 * shade.size - sum(shade.shape)
        return edges / pairs if pairs else 0.0


@register("flow reward", "colour_entropy")
class ColourEntropy(ImageStatistic):
    """-sum p log2 p / 9 over the shares p of 512 colours, 8 levels of red, green and blue each: 0 for one colour, 1
    where all are equally frequent."""

    def of(self, image: np.ndarray) -> float:
        import numpy as np

        level = image // 32
        colour = (level[..., 0].astype(np.intp) * 8 + level[..., 1]) * 8 + level[..., 2]
        count = np.bincount(colour.ravel())
        share = count[count > 0] / count.sum()
        return float(abs(share @ np.log2(share))) / 9


@register("flow reward", "saturation")
class Saturation(ImageStatistic):
    """Mean over the pixels of (max - min) / max of red, green and blue, 0 for black: 0 for grey, 1 for pure colours."""

    def of(self, image: np.ndarray) -> float:
        import numpy as np

        red, green, blue = (image[..., i] for i in range(3))  # much faster than the maximum along an axis of three
        most, least = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
        return float(((most - least) / np.maximum(most, 1).astype(np.float32)).mean(dtype=np.float64))


@register("flow reward", "latent_norm")
class LatentNorm(Reward):
    """Root mean square of a sample's latents, as the network draws them: a rise comes before images fall apart."""

    judged: ClassVar[str] = "samples"
    higher_is_better: ClassVar[bool] = False
    reads: ClassVar[tuple[Kind, ...]] = ("image", "clip", "sound")

    def required_fields(self) -> tuple[str, ...]:
        return ("latents",)

    def score(self, images: Sequence[Sample], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING) -> list[Score]:
        import numpy as np

        return [Score(float(np.sqrt(np.square(one, dtype=np.float64).mean()))) for one in inputs.columns["latents"]]


@register("flow reward", "distinctness")
class Distinctness(Reward):
    """How far a sample is from the mean of its prompt's samples: the mean over cells of the absolute difference of
    brightness (of a sound, of loudness), averaged over cells of a sixteenth of a side. 0 if all are alike.
    """

    judged: ClassVar[str] = "samples"
    higher_is_better: ClassVar[bool] = False
    reads: ClassVar[tuple[Kind, ...]] = ("image", "clip", "sound")

    def compares(self) -> Compared:
        return "groups"

    def score(self, images: Sequence[Sample], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING) -> list[Score]:
        import numpy as np

        cells = [coarse(sample) for sample in images]
        found = [Score(None, applicable=False)] * len(images)  # a sample without others has nothing to differ from
        for rows in inputs.groups(prompts):
            known = [row for row in rows if cells[row] is not None]
            if len(known) > 1:
                each = np.stack([cell for row in known if (cell := cells[row]) is not None])
                apart = np.abs(each - each.mean(0)).reshape(len(known), -1).mean(1)
                for row, value in zip(known, apart.tolist(), strict=True):
                    found[row] = Score(value)
        return found


def luminance(image: np.ndarray) -> np.ndarray:
    """Of an image's pixels, [H, W] float32 from 0, black, to 1, white."""
    import numpy as np

    return image @ (np.array(LUMA, dtype=np.float32) / np.float32(255))  # type: ignore[no-any-return]
