"""Images of the user as tensors: read before any weight is, and encoded where their rows are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from burnish.data.images import Holds, ImageRecord, read_images
from burnish.data.scored import ScoredGroup, check_groups, draw_members, scored_groups
from burnish.diffusion.config import FlowConfig
from burnish.diffusion.engine import FlowEngine
from burnish.types.batch import Gathered
from burnish.types.columns import Column, Made, stand_in
from burnish.types.rollout import Conditioning, Denoising, OfflineSamples, Prompt, Scored, Scores, all_noised
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import ENCODED, LruCache

if TYPE_CHECKING:
    import numpy as np

    from burnish.types.media import Media


class EncodedImages:
    """Images that are decoded and encoded by the VAE when they are first needed."""

    def __init__(
        self,
        records: Sequence[ImageRecord],
        engine: FlowEngine,
        *,
        crop: tuple[int, int] | None,
        shared: bool = False,
    ) -> None:
        """Take over the records.

        Args:
            records: all of them.
            engine: what draws the run's samples.
            crop: height and width that images are cropped to.
            shared: several ranks learn from every batch, so that each encodes what it uses, when it uses it.
        """
        self.records, self.engine, self.crop, self.shared = records, engine, crop, shared
        self._shape: tuple[int, ...] | None = None
        self._cache: LruCache[Tensor] = LruCache(ENCODED, lambda latents: latents.nbytes)

    def check(self) -> None:
        """Refuse images that don't fit the model."""
        self._latents(self.records[0])

    def batch(self, records: Sequence[ImageRecord], schedule: Tensor, *, update: int, seed: int) -> OfflineSamples:
        """Records as tensors, in order.

        Args:
            records: some of ``self.records``.
            schedule: [N + 1] times of the denoising steps that the policy samples with.
            update: policy update that trains on them; their noise depends on it.
            seed: of the run.
        """
        prompts = [record.prompt for record in records]
        conditioning = self.engine.condition(prompts)
        latents = self._shared_latents(records) if self.shared else torch.stack([self._latents(r) for r in records])
        return OfflineSamples(
            conditioning=conditioning,
            latents=latents,
            noised=self._noised(conditioning, latents),
            uid=[record.uid for record in records],
            schedule=schedule,
            update=update,
            version=update - 1,
            seed=seed,
        )

    def _shared_latents(self, records: Sequence[ImageRecord]) -> Tensor:
        """[B, M, ...] of which a rank encodes the rows that it learns."""
        assert self._shape is not None, "check comes first"
        of = [(record, one) for record in records for one in record.images]

        def encoded(rows: Tensor) -> Tensor:
            return torch.stack([self._latent(*of[row]) for row in rows.tolist()])

        places = torch.arange(len(of)).view(len(records), -1)
        dtype = self._latents(self.records[0]).dtype
        return stand_in(Column.of(Made(shape=(len(of), *self._shape), dtype=dtype, make=encoded), places))

    def _noised(self, conditioning: Gathered[Conditioning], latents: Tensor) -> Tensor:
        """Which elements of the images are noised, as ``OfflineSamples`` has them."""
        shape, model = tuple(latents.shape[2:]), self.engine.model
        if self.shared:  # what is given may decide for each prompt

            def masks(rows: Tensor) -> Tensor:
                found = model.noised(conditioning.select(rows))
                return torch.ones(len(rows), *shape, dtype=torch.bool) if found is None else found.cpu()

            return stand_in(Column.of(Made(shape=(len(latents), *shape), dtype=torch.bool, make=masks)))
        found = model.noised(conditioning)
        return all_noised(latents[:, 0]) if found is None else found.to(latents.device)

    def ready(self, records: Sequence[ImageRecord]) -> None:
        """Encode what this rank will learn of a shared batch at once, while text encoders and VAE are at hand."""
        prompts = [record.prompt for record in records]
        if prompts:
            self.engine.condition(prompts)
        for record in records:
            self._latents(record)

    def _latents(self, record: ImageRecord) -> Tensor:
        """[M, ...] of a record's images."""
        return torch.stack([self._latent(record, one) for one in record.images])

    def _latent(self, record: ImageRecord, image: Media) -> Tensor:
        return self._cache.get(image.digest, partial(self._encoded, record, image))

    def _encoded(self, record: ImageRecord, media: Media) -> Tensor:
        """Latents of an image, alone: they must not depend on the other images of a batch."""
        drawn = self.engine.condition([record.prompt]).rows()
        latents = self.engine.model.encode_images([self._pixels(record, media)], drawn)[0].cpu()
        if self._shape is None:
            self._shape = self.engine.latent_shape(record.prompt)
        if tuple(latents.shape) != self._shape:
            raise UserError(
                f"{record.where}: has an image whose latents have shape {list(latents.shape)}, but the run "
                f"samples {list(self._shape)}; set rollout.height and rollout.width to the images' size"
            )
        return latents

    def _pixels(self, record: ImageRecord, media: Media) -> np.ndarray:
        import numpy as np
        from PIL import Image, ImageOps

        try:
            frames = [*media.video()[0]] if media.kind == "video" else [np.array(media.image())]
        except (OSError, ValueError, SyntaxError) as error:  # PIL raises these if the file changed during the run
            name = f"has an image {media.path or 'in bytes'}"
            raise UserError(f"{record.where}: {name} that can't be decoded: {error}; restore it") from None
        if self.crop is not None:
            height, width = self.crop
            size = width, height
            frames = [np.array(ImageOps.fit(Image.fromarray(one), size, Image.Resampling.LANCZOS)) for one in frames]
        return np.stack(frames) if media.kind == "video" else frames[0]


class ScoredImages:
    """Images with scores, as if they had been sampled and scored: groups of a prompt, N images each at most."""

    def __init__(
        self, records: Sequence[ScoredGroup], images: EncodedImages, weights: Mapping[str, float], n: int
    ) -> None:
        """Take over the prompts; ``images`` encodes those of all of them, and ``weights`` is data.scores."""
        self.records, self.images, self.weights, self.n = records, images, weights, n

    def check(self) -> None:
        self.images.check()

    def ready(self, records: Sequence[Any]) -> None:
        self.images.ready(records)

    def drawn(self, records: Sequence[ScoredGroup], *, update: int, seed: int) -> list[ScoredGroup]:
        """The images of prompts that an update learns from: drawn where there are more than N."""
        return draw_members(records, self.n, update=update, seed=seed)

    def batch(self, records: Sequence[ScoredGroup], schedule: Tensor, *, update: int, seed: int) -> Scored:
        """The images of some prompts, as ``drawn`` returns them."""
        rows = [member for group in records for member in group.members]
        given = self.images.batch(rows, schedule, update=update, seed=seed)
        none = torch.zeros(len(rows), 0)
        return Scored(
            prompts=[row.prompt for row in rows],
            group=torch.tensor([number for number, group in enumerate(records) for _ in group.members]),
            sample=torch.tensor([group.first + i for group in records for i in range(len(group.members))]),
            trace=Denoising(
                conditioning=given.conditioning, latents=given.latents[:, 0],
                noised=given.noised, state=none, next_state=none, time=none, time_next=none, logprob=none,
                node=none.long(), schedule=schedule,
            ),
            scores=Scores.given([row.scores for row in rows], self.weights),
            update=update,
            version=given.version,
            seed=seed,
        )  # fmt: skip


OfflineImages: TypeAlias = EncodedImages | ScoredImages  # records, and how they become tensors


class ImageFiles:
    """What a section of the configuration names, checked as far as that goes without a model."""

    def __init__(
        self, config: FlowConfig, files: str | list[str], holds: Holds,
        limit: Callable[[Sequence[Any]], Sequence[Any]] = list,
    ) -> None:  # fmt: skip
        """Read them; ``limit`` chooses those of all records that are taken."""
        size = config.rollout.height, config.rollout.width
        self.crop: Any = size if config.data.fit == "centre_crop" else None
        self.n = config.rollout.n
        self.groups: list[ScoredGroup] = []  # of images with scores
        self.weights = (config.data.scores or {}) if holds == "scored" else {}
        self.read = read_images(files, holds, size=None if self.crop else size, keys=config.data, scores=self.weights)
        if holds == "scored":
            self.groups = list(limit(scored_groups(self.read, self.weights)))
            self.read = [member for group in self.groups for member in group.members]
            check_groups(self.groups, config)
        else:
            self.read = list(limit(self.read))

    @property
    def records(self) -> Sequence[Any]:
        """What a stream shuffles."""
        return self.groups or self.read

    @property
    def prompts(self) -> list[Prompt]:
        """Of all images."""
        return [record.prompt for record in self.groups or self.read]

    def learned_by(self, engine: FlowEngine, *, shared: bool) -> OfflineImages:
        """The images as the engine's model has them; ``shared`` says that several ranks learn from every batch."""
        encoded = EncodedImages(self.read, engine, crop=self.crop, shared=shared)
        return ScoredImages(self.groups, encoded, self.weights, self.n) if self.groups else encoded
