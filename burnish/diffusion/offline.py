"""Images of the user as tensors: read before any weight is, and encoded where their rows are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from burnish.data.images import Holds, ImageRecord, read_images
from burnish.data.scored import ScoredGroup, check_groups, draw_members, scored_groups
from burnish.diffusion.config import FlowConfig
from burnish.diffusion.engine import FlowEngine
from burnish.types.columns import Column, Made, stand_in
from burnish.types.media import Media
from burnish.types.rollout import Denoising, OfflineSamples, Prompt, Scored, Scores
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import ENCODED, LruCache


@dataclass(frozen=True)
class ImageFiles:
    """What a section of the configuration names, checked as far as that goes without a model."""

    images: Sequence[ImageRecord]
    groups: Sequence[ScoredGroup] = ()  # the same by their prompts, where they have scores
    weights: Mapping[str, float] = field(default_factory=dict)  # of these scores, as data.scores has them
    n: int = 1  # images with scores that an update learns of a prompt at most
    crop: Any = None  # height and width that images are cropped to

    @classmethod
    def read(
        cls, config: FlowConfig, files: str | list[str], holds: Holds,
        limit: Callable[[Sequence[Any]], Sequence[Any]] = list,
    ) -> ImageFiles:  # fmt: skip
        """Read them; ``limit`` chooses those of all records that are taken."""
        size = config.rollout.height, config.rollout.width
        crop = size if config.data.fit == "centre_crop" else None
        weights = (config.data.scores or {}) if holds == "scored" else {}
        images = read_images(files, holds, size=None if crop else size, keys=config.data, scores=weights)
        if holds != "scored":
            return cls(limit(images), crop=crop)
        groups = limit(scored_groups(images, weights))
        check_groups(groups, config)
        return cls([member for group in groups for member in group.members], groups, weights, config.rollout.n, crop)

    @property
    def records(self) -> Sequence[Any]:
        """What a stream shuffles."""
        return self.groups or self.images

    @property
    def prompts(self) -> list[Prompt]:
        """Of all records."""
        return [record.prompt for record in self.records]


class FinishedImages:
    """Images that are decoded and encoded by the VAE when they are first needed."""

    def __init__(self, files: ImageFiles, engine: FlowEngine) -> None:
        self.files, self.engine = files, engine
        self._cache: LruCache[Tensor] = LruCache(ENCODED, lambda latents: latents.nbytes)

    def check(self) -> None:
        """Refuse images that don't fit the model."""
        record = self.files.images[0]
        for image in record.images:
            self._latents(record, image)

    def batch(self, records: Sequence[Any], schedule: Tensor, *, update: int, seed: int) -> OfflineSamples | Scored:
        """Records as tensors, in order. Several ranks call it together, and each encodes some of the images.

        Args:
            records: some of those of the files.
            schedule: [N + 1] times of the denoising steps that the policy samples with.
            update: policy update that trains on them; their noise depends on it.
            seed: of the run.
        """
        groups = draw_members(records, self.files.n, update=update, seed=seed) if self.files.groups else []
        rows = [member for group in groups for member in group.members] if groups else records
        images = [(row, image) for row in rows for image in row.images]
        conditioning = self.engine.condition([row.prompt for row in rows])

        def encoded(part: range) -> Tensor:
            return torch.stack([self._latents(*images[place]) for place in part])

        def noised(part: Tensor) -> Tensor:  # what is given may decide for each prompt
            mask = self.engine.model.noised(conditioning.select(part))
            return torch.ones(len(part), *shape, dtype=torch.bool) if mask is None else mask.cpu()

        latents = self.engine.roles.kept(encoded, [range(place, place + 1) for place in range(len(images))])
        shape = tuple(latents.shape[1:])
        samples = OfflineSamples(
            conditioning=conditioning,
            latents=latents.view(len(rows), -1, *shape),
            noised=stand_in(Column.of(Made(shape=(len(rows), *shape), dtype=torch.bool, make=noised))),
            uid=[row.uid for row in rows],
            schedule=schedule,
            update=update,
            version=update - 1,
            seed=seed,
        )
        return as_sampled(samples, groups, self.files.weights) if groups else samples

    def _latents(self, record: ImageRecord, image: Media) -> Tensor:
        return self._cache.get(image.digest, partial(self._encoded, record, image))

    def _encoded(self, record: ImageRecord, media: Media) -> Tensor:
        """Latents of an image, alone: they must not depend on the other images of a batch."""
        drawn = self.engine.condition([record.prompt])
        return self.engine.model.encode_images([self._pixels(record, media)], drawn)[0].cpu()

    def _pixels(self, record: ImageRecord, media: Media) -> np.ndarray:
        try:
            frames = [*media.video()[0]] if media.kind == "video" else [np.array(media.image())]
        except (OSError, ValueError, SyntaxError) as error:  # PIL raises these if the file changed during the run
            name = f"has an image {media.path or 'in bytes'}"
            raise UserError(f"{record.where}: {name} that can't be decoded: {error}; restore it") from None
        if self.files.crop is not None:
            size = self.files.crop[::-1]  # PIL's width and height
            frames = [np.array(ImageOps.fit(Image.fromarray(one), size, Image.Resampling.LANCZOS)) for one in frames]
        return np.stack(frames) if media.kind == "video" else frames[0]


def as_sampled(given: OfflineSamples, groups: Sequence[ScoredGroup], weights: Mapping[str, float]) -> Scored:
    """Images with scores, one to a row, as if they had been sampled and scored in groups of a prompt."""
    rows, none = [member for group in groups for member in group.members], torch.zeros(len(given), 0)
    return Scored(
        prompts=[row.prompt for row in rows],
        group=torch.tensor([number for number, group in enumerate(groups) for _ in group.members]),
        sample=torch.tensor([group.first + i for group in groups for i in range(len(group.members))]),
        trace=Denoising(
            conditioning=given.conditioning, latents=given.latents[:, 0],
            noised=given.noised, state=none, next_state=none, time=none, time_next=none, logprob=none,
            node=none.long(), schedule=given.schedule,
        ),
        scores=Scores.given([row.scores for row in rows], weights),
        update=given.update,
        version=given.version,
        seed=given.seed,
    )  # fmt: skip
