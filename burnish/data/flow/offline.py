"""Pictures of a data set as tensors: latents and embedded prompts, computed or read where their rows are used."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from burnish.data.flow.pictures import Holds, PictureRecord, ScoredGroup
from burnish.types.batch import Gathered
from burnish.types.columns import CHUNK, Column, Made, stand_in
from burnish.types.prompt import Prompt
from burnish.types.rollout import Conditioning, Denoising, Embeddings, OfflineSamples, Scored, Scores, all_noised
from burnish.utils import random
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import LruCache

if TYPE_CHECKING:
    import numpy as np

    from burnish.models.flow.base import FlowModel
    from burnish.types.media import Media

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

    def ready(self, records: Sequence[Any]) -> None:
        """Have at hand what a rank will learn of a batch that several share."""

    def batch(self, records: Sequence[Any], schedule: Tensor, *, update: int, seed: int) -> OfflineSamples | Scored:
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
        shared: bool = False,
    ) -> None:
        """Take over the records.

        Args:
            records: all of them.
            engine: what draws the run's samples.
            crop: height and width that pictures are cropped to.
            cached: bytes of latents that are kept.
            shared: several ranks learn from every batch, so that each encodes what it uses, when it uses it.
        """
        self.records, self.engine, self.crop, self.shared = records, engine, crop, shared
        self._shape: tuple[int, ...] | None = None
        self._cache: LruCache[Tensor] = LruCache(cached, lambda latents: latents.nbytes)

    def check(self) -> None:
        self._latents(self.records[0])

    def batch(self, records: Sequence[PictureRecord], schedule: Tensor, *, update: int, seed: int) -> OfflineSamples:
        prompts = [record.prompt for record in records]
        conditioning = self._condition(prompts)
        latents = self._shared_latents(records) if self.shared else torch.stack([self._latents(r) for r in records])
        return OfflineSamples(
            conditioning=conditioning,
            unconditional=self._condition([prompt.unconditional for prompt in prompts]),
            latents=latents,
            noised=self._noised(conditioning, latents),
            uid=[record.uid for record in records],
            schedule=schedule,
            update=update,
            version=update - 1,
            seed=seed,
        )

    def _shared_latents(self, records: Sequence[PictureRecord]) -> Tensor:
        """[B, M, ...] of which a rank encodes the rows that it learns."""
        assert self._shape is not None, "check comes first"
        of = [(record, one) for record in records for one in record.pictures]

        def encoded(rows: Tensor) -> Tensor:
            return torch.stack([self._latent(*of[row]) for row in rows.tolist()])

        places = torch.arange(len(of)).view(len(records), -1)
        return stand_in(Column.of(Made((len(of), *self._shape), self._latents(self.records[0]).dtype, encoded), places))

    def _condition(self, prompts: Sequence[Prompt]) -> Gathered[Conditioning]:
        """What samples of prompts are drawn from; embeddings of a shared batch are computed where they are used."""
        if not self.shared:
            return self.engine.condition(prompts)
        first = self.engine.condition(prompts[:1])
        if not isinstance(first.table, Embeddings):
            return self.engine.condition(prompts)
        unique = {prompt.uid: prompt for prompt in prompts}
        each, row = list(unique.values()), {uid: i for i, uid in enumerate(unique)}

        def embedded(name: str) -> Tensor:
            def of(rows: Tensor) -> Tensor:
                found = self.engine.condition([each[i] for i in rows.tolist()])
                tensor: Tensor = getattr(found.rows(), name)
                return tensor

            like: Tensor = getattr(first.table, name)
            return stand_in(Column.of(Made((len(each), *like.shape[1:]), like.dtype, of)))

        table = Embeddings(tokens=embedded("tokens"), pooled=embedded("pooled"))
        return Gathered(table=table, index=torch.tensor([row[prompt.uid] for prompt in prompts]))

    def _noised(self, conditioning: Gathered[Conditioning], latents: Tensor) -> Tensor:
        """Which elements of the pictures are noised, as ``OfflineSamples`` has them."""
        shape, model = tuple(latents.shape[2:]), self.engine.model
        if self.shared and not isinstance(conditioning.table, Embeddings):  # what is given may decide for each prompt

            def masks(rows: Tensor) -> Tensor:
                found = model.noised(conditioning.select(rows))
                return torch.ones(len(rows), *shape, dtype=torch.bool) if found is None else found.cpu()

            return stand_in(Column.of(Made((len(latents), *shape), torch.bool, masks)))
        found = model.noised(conditioning)
        return all_noised(latents[:, 0]) if found is None else found.to(latents.device)

    def ready(self, records: Sequence[PictureRecord]) -> None:
        """Encode what this rank will learn of a shared batch at once, while text encoders and VAE are at hand."""
        prompts = [record.prompt for record in records]
        if prompts:
            self.engine.condition([*prompts, *(prompt.unconditional for prompt in prompts)])
        for record in records:
            self._latents(record)

    def _latents(self, record: PictureRecord) -> Tensor:
        """[M, ...] of a record's pictures."""
        return torch.stack([self._latent(record, one) for one in record.pictures])

    def _latent(self, record: PictureRecord, picture: Media) -> Tensor:
        return self._cache.get(picture.digest, partial(self._encoded, record, picture))

    def _encoded(self, record: PictureRecord, media: Media) -> Tensor:
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

    def _pixels(self, record: PictureRecord, media: Media) -> np.ndarray:
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


class ScoredPictures:
    """Pictures with rewards, as if they had been sampled and scored: groups of a prompt, N pictures each at most."""

    def __init__(self, records: Sequence[ScoredGroup], pictures: EncodedPictures, n: int) -> None:
        """Take over the prompts; ``pictures`` encodes those of all of them."""
        self.records, self.pictures, self.n = records, pictures, n

    def check(self) -> None:
        self.pictures.check()

    def ready(self, records: Sequence[Any]) -> None:
        self.pictures.ready(records)

    def drawn(self, records: Sequence[ScoredGroup], *, update: int, seed: int) -> list[ScoredGroup]:
        """The pictures of prompts that an update learns from: drawn where there are more than N."""
        seen: Counter[str] = Counter()
        found = []
        for group in records:  # a prompt that comes again has samples with other numbers, and so other noise
            first, members = self.n * seen[group.uid], group.members
            seen[group.uid] += 1
            if len(members) > self.n:
                order = random.permutation(len(members), seed, "scored pictures", update, group.uid, first)
                members = tuple(members[i] for i in sorted(order[: self.n]))
            found.append(ScoredGroup(members, first))
        return found

    def batch(self, records: Sequence[ScoredGroup], schedule: Tensor, *, update: int, seed: int) -> Scored:
        """The pictures of some prompts, as ``drawn`` returns them."""
        rows = [member for group in records for member in group.members]
        given = self.pictures.batch(rows, schedule, update=update, seed=seed)
        reward = torch.tensor([row.reward for row in rows])
        none = torch.zeros(len(rows), 0)
        return Scored(
            prompts=[row.prompt for row in rows],
            group=torch.tensor([number for number, group in enumerate(records) for _ in group.members]),
            sample=torch.tensor([group.first + i for group in records for i in range(len(group.members))]),
            trace=Denoising(
                conditioning=given.conditioning, unconditional=given.unconditional, latents=given.latents[:, 0],
                noised=given.noised, state=none, next_state=none, time=none, time_next=none, logprob=none,
                node=none.long(), schedule=schedule,
            ),
            scores=Scores(
                reward=reward, missing=torch.zeros(len(rows), dtype=torch.bool), components=reward[:, None],
                names=("reward",), weights=(1.0,), notes=[""] * len(rows),
            ),
            update=update,
            version=given.version,
            seed=seed,
        )  # fmt: skip


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
        import safetensors

        try:
            file: Any = safetensors.safe_open(path, framework="pt")  # mapped: rows are read where they are used
            self.tensors = {name: file.get_slice(name) for name in list(file.keys())}
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(f"{path} can't be read as safetensors: {error}") from None
        self.path = path
        self.names = ("latents",) if holds == "pictures" else ("chosen", "rejected")
        self.shapes = {name: tuple(found.get_shape()) for name, found in self.tensors.items()}
        problems = list(self._problems())
        if problems:
            raise UserError("\n".join(f"{path}: {problem}" for problem in problems))
        count = self.shapes[self.names[0]][0]
        self.records = [StoredRow(i, _digest(torch.stack(self._latents(i)))) for i in range(count)]
        self.embed: Embed | None = None
        self.shape: tuple[int, ...] = ()

    def connect(self, embed: Embed, shape: tuple[int, ...]) -> None:
        """Set what the loaded model defines: how it embeds prompts, and the shape of its latents."""
        self.embed, self.shape = embed, shape

    def check(self) -> None:
        assert self.embed is not None, "connect comes first"
        if (stored := self.shapes[self.names[0]][1:]) != self.shape:
            raise UserError(
                f"{self.path} holds latents {list(stored)}, but the run samples {list(self.shape)}; "
                "set rollout.height and rollout.width to match"
            )
        empty: Any = self.embed([Prompt(text="")]).rows()
        if not isinstance(empty, Embeddings):
            raise UserError(f"{self.path} holds embedded prompts, which this model can't read; give pictures instead")
        for name, own in (("tokens", empty.tokens), ("pooled", empty.pooled)):
            if self.shapes[name][1:] != tuple(own.shape[1:]):
                raise UserError(
                    f"{self.path} holds {name} {list(self.shapes[name][1:])}, but this model's are "
                    f"{list(own.shape[1:])}; compute them with it, and with the same rollout.max_sequence_length"
                )

    def ready(self, records: Sequence[StoredRow]) -> None:
        """Nothing: rows are only read."""

    def batch(self, records: Sequence[StoredRow], schedule: Tensor, *, update: int, seed: int) -> OfflineSamples:
        assert self.embed is not None, "connect comes first"
        index = torch.tensor([record.number for record in records])
        has_negative = "negative_tokens" in self.tensors
        return OfflineSamples(
            conditioning=self._embedded(index, ""),
            unconditional=self._embedded(index, "negative_")
            if has_negative
            else self.embed([Prompt(text="")] * len(index)),
            latents=self._read_latents(index),
            uid=[record.uid for record in records],
            schedule=schedule,
            update=update,
            version=update - 1,
            seed=seed,
        )

    def _latents(self, number: int) -> list[Tensor]:
        """A row of the file."""
        return [self.tensors[name][number].float() for name in self.names]

    def _read_latents(self, index: Tensor) -> Tensor:
        """[B, M, ...] of rows, each read where it is used."""
        members, shape = len(self.names), self.shapes[self.names[0]]

        def read(places: Tensor) -> Tensor:
            found = [self.tensors[self.names[at % members]][at // members].float() for at in places.tolist()]
            return torch.stack(found) if found else torch.zeros(0, *shape[1:])

        places = index[:, None] * members + torch.arange(members)
        return stand_in(Column.of(Made((shape[0] * members, *shape[1:]), torch.float32, read), places))

    def _embedded(self, index: Tensor, prefix: str) -> Gathered[Conditioning]:
        def column(name: str) -> Tensor:
            stored, shape = self.tensors[prefix + name], self.shapes[prefix + name]

            def read(rows: Tensor) -> Tensor:
                found = [stored[row].float() for row in rows.tolist()]
                return torch.stack(found) if found else torch.zeros(0, *shape[1:])

            return stand_in(Column.of(Made(shape, torch.float32, read), index))

        return Gathered(
            table=Embeddings(tokens=column("tokens"), pooled=column("pooled")), index=torch.arange(len(index))
        )

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
        counts = {name: (self.shapes[name] or (0,))[0] for name in present}
        if len(set(counts.values())) > 1:
            problems.append(
                "its tensors have different numbers of rows: " + ", ".join(f"{k} {v}" for k, v in counts.items())
            )
        elif not counts["tokens"]:
            problems.append("its tensors have no rows")
        if len({self.shapes[name][1:] for name in self.names}) > 1:
            problems.append("chosen and rejected differ in shape")
        return problems + [f"{name} has NaN or infinite values" for name in present if not self._finite(name)]

    def _finite(self, name: str) -> bool:
        stored, count = self.tensors[name], self.shapes[name][0]
        return all(bool(stored[at : at + CHUNK].isfinite().all()) for at in range(0, count, CHUNK))


def _digest(row: Tensor) -> str:
    return hashlib.blake2b(row.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
