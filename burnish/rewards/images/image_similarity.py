"""How alike a picture and another one are: the one that it was made of, or one that the record names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from burnish.registry import register
from burnish.rewards.contrastive import Contrastive, load_contrastive, of_length_one
from burnish.rewards.images.learned import CONFIG, PixelReward, Source, load_strictly
from burnish.rewards.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing, read_preprocessing
from burnish.types.media import Media
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.lru_cache import LruCache

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.types.prompt import Prompt

EMBEDDING = ("clip", "siglip")
DINO = {
    "dinov2": "Dinov2Model", "dinov2_with_registers": "Dinov2WithRegistersModel", "dinov3_vit": "DINOv3ViTModel",
    "vit": "ViTModel",
}  # fmt: skip
KEPT = 4096  # pictures whose embeddings are kept


@dataclass
class Embedder:
    """A network whose first token stands for the picture. It never learns."""

    network: Any
    preprocessing: Preprocessing

    def images(self, pixels: Tensor) -> Tensor:
        """Embeddings of length 1 of pixels: [B, D] float32, with gradients to them."""
        return of_length_one(self.network(pixel_values=pixels.to(self.network.dtype)).last_hidden_state[:, 0])


@dataclass
class Comparer:
    """An embedding network, and the embeddings of pictures that are compared with."""

    encoder: Contrastive | Embedder
    kept: LruCache[Tensor] = field(default_factory=lambda: LruCache(KEPT))

    @property
    def network(self) -> Any:
        """What is put away."""
        return self.encoder.network

    @property
    def preprocessing(self) -> Preprocessing:
        """Of the pictures."""
        return self.encoder.preprocessing

    def embedded(self, picture: Media) -> Tensor:
        """The embedding of a picture, made once: [D]."""
        return self.kept.get(picture.digest, lambda: self._embed(picture)).to(self.network.device)

    def _embed(self, picture: Media) -> Tensor:
        import numpy as np
        import torch

        with torch.no_grad():
            pixels = self.preprocessing.pictures([np.asarray(picture.image())])
            return self.encoder.images(pixels.to(self.network.device))[0].cpu()


@register("flow reward", "image_similarity")
class ImageSimilarity(PixelReward):
    """Cosine of the embeddings of the picture and of another one, by CLIP, SigLIP, DINO, DINOv2 or DINOv3.

    With several others it is the mean over them.
    """

    path: str = "facebook/dinov2-base"
    """Directory, or org/name on the Hugging Face hub, of the network."""
    against: str | None = None
    """Key of the record that names the other picture, a file; null compares with the pictures that the prompt shows:
    for a model that edits, those that it was given."""
    mapping: Literal["cosine", "unit"] = "cosine"
    """cosine: -1 to 1; unit: (1 + cosine) / 2."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        for prompt in prompts:
            if not self.judges(prompt):
                continue
            try:
                self._others(prompt)
            except (ValueError, OSError) as error:
                raise UserError(f"reward {self.name} can't score {prompt.name}: {error}") from None

    def complaint(self, source: Source, place: Path) -> str:
        return super().complaint(source, place) or embedding_complaint(place)

    def load(self) -> Comparer:
        return comparer(self.folder(), self.dtype, self.resting)

    def values(self, model: Any, pixels: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        import torch

        own = model.encoder.images(pixels)
        others = [torch.stack([model.embedded(other) for other in self._others(prompt)]) for prompt in prompts]
        cosine = torch.stack([(rows @ row).mean() for row, rows in zip(own, others, strict=True)])
        return (1 + cosine) / 2 if self.mapping == "unit" else cosine

    def _others(self, prompt: Prompt) -> tuple[Media, ...]:
        """The pictures that a picture of a prompt is compared with.

        Raises:
            ValueError: there is none.
            OSError: it can't be read.
        """
        if self.against is None:
            if not prompt.images:
                raise ValueError("it shows no picture; give one in the record's image, or set against to another key")
            return prompt.images
        named = prompt.info.get(self.against)
        if not isinstance(named, str):
            raise ValueError(f"its record has no {self.against} that names a picture")
        return (Media.file(named),)


def embedding_complaint(place: Path) -> str:
    """Why the network of a folder can't embed pictures, or ""."""
    found = read_object(place / CONFIG).get("model_type")
    return "" if found in (*EMBEDDING, *DINO) else f"{place} is a {found}; give one of {', '.join((*EMBEDDING, *DINO))}"


@cache
def comparer(folder: Path, dtype: str, device: str) -> Comparer:
    """The network of a folder, loaded once, however many rewards use it."""
    import transformers

    kind = read_object(folder / CONFIG).get("model_type")
    if kind in EMBEDDING:
        return Comparer(load_contrastive(folder, dtype, device))
    options = {"add_pooling_layer": False} if kind == "vit" else {}
    network = load_strictly(getattr(transformers, DINO[str(kind)]), folder, dtype=dtype, device=device, **options)
    usual = Preprocessing(
        size=network.config.image_size, fit="stretch", filter="bilinear", mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    return Comparer(Embedder(network, read_preprocessing(folder, usual)))
