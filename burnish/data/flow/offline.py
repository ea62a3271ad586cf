"""Pictures of a data set as tensors: latents and embedded prompts, computed once or read from a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from burnish.data.flow.pictures import Holds, PictureRecord
from burnish.types.batch import Gathered
from burnish.types.prompt import Prompt
from burnish.types.rollout import Conditioning, Embeddings, OfflineSamples, all_noised
from burnish.utils.errors import UserError
from burnish.utils.recent import Recent

if TYPE_CHECKING:
    import numpy as np

    from burnish.models.flow.base import FlowModel

CACHED = 4 << 30  # bytes of latents of pictures that are kept in memory

Embed = Callable[[Sequence[Prompt]], Gathered[Conditioning]]


class Engine(Protocol):
    """What draws the run's samples."""

    @property
    def model(self) -> FlowModel:
        """The generator."""

    def condition(self, prompts: Sequence[Prompt]) -> Gathered[Conditioning]:
        """What the run's samples of prompts are drawn from."""

    def latent_shape(self, prompt: Prompt) -> tuple[int, ...]:
        """Shape of a sample's latents."""


class OfflinePictures(Protocol):
    """Records, and how they become tensors."""

    @property
    def records(self) -> Sequence[Any]:
        """The items of a stream; each has a uid."""

    def check(self) -> None:
        """Check what needs the loaded model.

        Raises:
            UserError: the pictures don't fit the model.
        """

    def batch(self, records: Sequence[Any], schedule: Tensor, *, update: int, seed: int) -> OfflineSamples:
        """Records as tensors, in order.

        Args:
            records: some of ``self.records``.
            schedule: [N + 1] times of the denoising steps that the policy samples with.
            update: policy update that trains on them; their noise depends on it.
            seed: of the run.
        """
        ...


class EncodedPictures:
    """Pictures that are decoded and encoded by the VAE when they are first needed."""

    def __init__(
        self,
        records: Sequence[PictureRecord],
        engine: Engine,
        *,
        crop: tuple[int, int] | None,
        cached: int = CACHED,
    ) -> None:
        """Args: ``crop`` is the height and width that pictures are cropped to, ``cached`` bytes of latents are kept."""
        self.records, self.engine, self.crop = records, engine, crop
        self._shape: tuple[int, ...] | None = None
        self._cache: Recent[Tensor] = Recent(cached, lambda latents: latents.nbytes)

    def check(self) -> None:
        self._latents(self.records[0])

    def batch(self, records: Sequence[PictureRecord], schedule: Tensor, *, update: int, seed: int) -> OfflineSamples:
        conditioning = self.engine.condition([record.prompt for record in records])
        latents, noised = torch.stack([self._latents(one) for one in records]), self.engine.model.noised(conditioning)
        return OfflineSamples(
            conditioning=conditioning,
            unconditional=self.engine.condition([record.prompt.unconditional for record in records]),
            latents=latents,
            noised=all_noised(latents[:, 0]) if noised is None else noised.to(latents.device),
            uid=[record.uid for record in records],
            schedule=schedule,
            update=update,
            version=update - 1,
            seed=seed,
        )

    def _latents(self, record: PictureRecord) -> Tensor:
        """[M, ...] of a record's pictures."""
        return torch.stack(
            [self._cache.get(one.digest, partial(self._encoded, record, one)) for one in record.pictures]
        )

    def _encoded(self, record: PictureRecord, media: Any) -> Tensor:
        """Latents of a picture, alone: they must not depend on the other pictures of a batch."""
        drawn = self.engine.condition([record.prompt]).rows()
        latents = self.engine.model.encode_pictures([self._pixels(record, media)], drawn)[0].cpu()
        if self._shape is None:
            self._shape = self.engine.latent_shape(record.prompt)
        if tuple(latents.shape) != self._shape:
            raise UserError(
                f"{record.where}: has a picture whose latents have shape {list(latents.shape)}, but the run "
                f"samples {list(self._shape)}; set rollout.height and rollout.width to the pictures' size"
            )
        return latents

    def _pixels(self, record: PictureRecord, media: Any) -> np.ndarray:
        import numpy as np
        from PIL import Image, ImageOps

        try:
            image = media.image()
        except (OSError, ValueError, SyntaxError) as error:  # PIL raises these if the file changed during the run
            name = f"has a picture {media.path or 'in bytes'}"
            raise UserError(f"{record.where}: {name} that can't be decoded: {error}; restore it") from None
        if self.crop is not None:
            height, width = self.crop
            image = ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
        return np.array(image)


@dataclass(frozen=True)
class StoredRow:
    """A row of a .safetensors file."""

    number: int
    uid: str

    @property
    def where(self) -> str:
        """For error messages."""
        return f"row {self.number + 1}"


class StoredLatents:
    """Precomputed latents and embedded prompts in a .safetensors file.

    ``tokens`` [N, L, D] and ``pooled`` [N, P] are the prompts; ``latents`` [N, ...] the pictures, or ``chosen`` and
    ``rejected``. ``negative_tokens`` and ``negative_pooled`` are optional; the default is the empty prompt.
    """

    def __init__(self, path: Path, holds: Holds) -> None:
        """Read the file.

        Raises:
            UserError: it can't be read, or its tensors are wrong; the message lists everything.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            self.tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path} can't be read as safetensors: {error}") from None
        self.path = path
        self.names = ("latents",) if holds == "pictures" else ("chosen", "rejected")
        problems = list(self._problems())
        if problems:
            raise UserError("\n".join(f"{path}: {problem}" for problem in problems))
        self.latents = torch.stack([self.tensors[name].float() for name in self.names], 1)
        self.records = [StoredRow(i, _digest(row)) for i, row in enumerate(self.latents)]
        self.embed: Embed | None = None
        self.shape: tuple[int, ...] = ()

    def connect(self, embed: Embed, shape: tuple[int, ...]) -> None:
        """Set what the loaded model defines: how it embeds prompts, and the shape of its latents."""
        self.embed, self.shape = embed, shape

    def check(self) -> None:
        assert self.embed is not None, "connect comes first"
        if tuple(self.latents.shape[2:]) != self.shape:
            raise UserError(
                f"{self.path} holds latents {list(self.latents.shape[2:])}, but the run samples {list(self.shape)}; "
                "set rollout.height and rollout.width to match"
            )
        empty: Any = self.embed([Prompt(text="")]).rows()
        if not isinstance(empty, Embeddings):
            raise UserError(f"{self.path} holds embedded prompts, which this model can't read; give pictures instead")
        for name, own in (("tokens", empty.tokens), ("pooled", empty.pooled)):
            if self.tensors[name].shape[1:] != own.shape[1:]:
                raise UserError(
                    f"{self.path} holds {name} {list(self.tensors[name].shape[1:])}, but this model's are "
                    f"{list(own.shape[1:])}; compute them with it, and with the same rollout.max_sequence_length"
                )

    def batch(self, records: Sequence[StoredRow], schedule: Tensor, *, update: int, seed: int) -> OfflineSamples:
        assert self.embed is not None, "connect comes first"
        index = torch.tensor([record.number for record in records])
        empty: Any = self.embed([Prompt(text="")] * len(index))
        device = empty.table.tokens.device
        has_negative = "negative_tokens" in self.tensors
        return OfflineSamples(
            conditioning=self._embedded(index, "").to(device),
            unconditional=self._embedded(index, "negative_").to(device) if has_negative else empty,
            latents=self.latents[index],
            uid=[record.uid for record in records],
            schedule=schedule,
            update=update,
            version=update - 1,
            seed=seed,
        )

    def _embedded(self, index: Tensor, prefix: str) -> Gathered[Conditioning]:
        tokens, pooled = (self.tensors[prefix + name][index].float() for name in ("tokens", "pooled"))
        return Gathered(table=Embeddings(tokens=tokens, pooled=pooled), index=torch.arange(len(index)))

    def _problems(self) -> list[str]:
        needed = ("tokens", "pooled", *self.names)
        optional = ("negative_tokens", "negative_pooled")
        absent = [name for name in needed if name not in self.tensors]
        if absent:
            return [f"has no tensor {', '.join(absent)}; it holds {', '.join(sorted(self.tensors)) or 'none'}"]
        problems = []
        if len({name in self.tensors for name in optional}) == 2:
            problems.append("has only one of negative_tokens and negative_pooled; give both or neither")
        present = [*needed, *(name for name in optional if name in self.tensors)]
        counts = {name: len(self.tensors[name]) for name in present}
        if len(set(counts.values())) > 1:
            problems.append(
                "its tensors have different numbers of rows: " + ", ".join(f"{k} {v}" for k, v in counts.items())
            )
        elif not counts["tokens"]:
            problems.append("its tensors have no rows")
        if len({self.tensors[name].shape[1:] for name in self.names}) > 1:
            problems.append("chosen and rejected differ in shape")
        return problems + [f"{name} has NaN or infinite values" for name in present
                           if not self.tensors[name].isfinite().all()]  # fmt: skip


def _digest(row: Tensor) -> str:
    return hashlib.blake2b(row.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
