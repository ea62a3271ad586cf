"""How different the pictures of a prompt are, by a network that embeds them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import model_validator

from burnish.registry import register
from burnish.rewards.base import Compared, Given, Verdict
from burnish.rewards.images.image_similarity import Comparer, comparer, embedding_complaint
from burnish.rewards.images.learned import LearnedReward, Source, batches
from burnish.rewards.text.reading_model import awake
from burnish.types.clips import Clip, Kind
from burnish.types.media import evenly_spaced

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt

FRAMES = 8  # of a clip that are compared


@register("flow reward", "image_variety")
class ImageVariety(LearnedReward):
    """How far a picture is from the others of its prompt: 1 - the mean cosine of its embedding and theirs, by CLIP,
    SigLIP, DINO, DINOv2 or DINOv3; 0 if all are alike. Clips are compared frame by frame.
    """

    judged: ClassVar[str] = "samples"
    higher_is_better: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False  # it depends on the other samples
    reads: ClassVar[tuple[Kind, ...]] = ("image", "clip")

    path: str = "facebook/dinov2-base"
    """Directory, or org/name on the Hugging Face hub, of the network. That of another reward is loaded once, if dtype
    and device are the same."""

    @model_validator(mode="after")
    def _compares_whole_clips(self) -> Self:
        if self.frames is not None:
            raise ValueError(
                f"frames is never read, because {self.name} compares clips at {FRAMES} frames; leave it out"
            )
        return self

    def compares(self) -> Compared:
        return "groups"

    def complaint(self, source: Source, place: Path) -> str:
        return super().complaint(source, place) or embedding_complaint(place)

    def load(self) -> Comparer:
        return comparer(self.folder(), self.dtype, self.resting)

    def score(self, images: Sequence[np.ndarray | Clip], prompts: Sequence[Prompt]) -> list[Verdict]:
        return self.score_given(images, prompts, Given())

    def score_given(
        self, samples: Sequence[np.ndarray | Clip], prompts: Sequence[Prompt], given: Given
    ) -> list[Verdict]:
        import torch

        found = [Verdict(None, asked=False)] * len(samples)  # a sample without others has nothing to differ from
        groups = [rows for rows in given.groups(prompts) if len(rows) > 1]
        wanted = [row for rows in groups for row in rows]
        parts = [_pictures(samples[row]) for row in wanted]
        embedded = iter(self._embedded([picture for some in parts for picture in some]))
        whole = {row: torch.stack([next(embedded) for _ in some]) for row, some in zip(wanted, parts, strict=True)}
        for rows in groups:
            each = torch.stack([whole[row] for row in rows]).flatten(1)  # [N, frames * D]
            cosine = each @ each.T / len(whole[rows[0]])
            others = (cosine.sum(1) - cosine.diagonal()) / (len(rows) - 1)
            for row, value in zip(rows, (1 - others).tolist(), strict=True):
                found[row] = Verdict(value)
        return found

    def _embedded(self, pictures: Sequence[np.ndarray]) -> list[Tensor]:
        """Embeddings of length 1, on the CPU."""
        encoder = self.load().encoder
        found: list[Tensor] = []
        with awake(encoder.network, self.device, self.put_away):
            for some in batches(pictures, self.batch_size):
                found += encoder.images(encoder.preprocessing.pictures(some).to(self.device)).cpu().unbind(0)
        return found


def _pictures(sample: np.ndarray | Clip) -> list[np.ndarray]:
    """What is embedded of a sample."""
    if not isinstance(sample, Clip):
        return [sample]
    return [sample.frames[i] for i in evenly_spaced(len(sample.frames), FRAMES)]
