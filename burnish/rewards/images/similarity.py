"""How alike images are by a network that embeds them: to another one, and the images of a prompt to each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from burnish.registry import options, register
from burnish.rewards.base import NOTHING, Compared, RewardInputs, Score, images_of
from burnish.rewards.images.learned import LearnedReward, PixelReward
from burnish.rewards.networks.contrastive import Embedder, load_contrastive
from burnish.rewards.networks.inputs import IMAGENET_MEAN, IMAGENET_STD, Preprocessing, read_preprocessing
from burnish.rewards.networks.loading import CONFIG, NetworkOptions, Source, load_strictly, network_complaint
from burnish.types.media import Media
from burnish.types.samples import Clip, Kind
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt

CONTRASTIVE = ("clip", "siglip")
DINO = {
    "dinov2": "Dinov2Model", "dinov2_with_registers": "Dinov2WithRegistersModel", "dinov3_vit": "DINOv3ViTModel",
    "vit": "ViTModel",
}  # fmt: skip


@cache
def _embedder(folder: Path, dtype: str, device: str) -> Embedder:
    """The network of a folder, loaded once, however many rewards use it."""
    import transformers

    kind = read_object(folder / CONFIG)["model_type"]
    if kind in CONTRASTIVE:
        return load_contrastive(folder, dtype, device, (), False)
    options = {"add_pooling_layer": False} if kind == "vit" else {}
    network = load_strictly(getattr(transformers, DINO[kind]), folder, dtype=dtype, device=device, **options)
    usual = Preprocessing(
        size=network.config.image_size, fit="stretch", filter="bilinear", mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    return Embedder(network, read_preprocessing(folder, usual))


@options
class Embedding(NetworkOptions):
    """What both rewards load."""

    def sources(self) -> tuple[Source, ...]:
        return (Source(complaint=partial(network_complaint, families=(*CONTRASTIVE, *DINO))),)

    def load(self) -> Embedder:
        return _embedder(self.folder(), self.dtype, self.resting)


@register("flow reward", "image_similarity")
class ImageSimilarity(Embedding, PixelReward):
    """Cosine of the embeddings of the image and of another one, by CLIP, SigLIP, DINO, DINOv2 or DINOv3.

    With several others it is the mean over them.
    """

    path: str = "facebook/dinov2-base"
    """Directory, or org/name on the Hugging Face hub, of the network."""
    against: str | None = None
    """Key of the record that names the other image, a file; null compares with the images that the prompt shows:
    for a model that edits, those that it was inputs."""
    mapping: Literal["cosine", "unit"] = "cosine"
    """cosine: -1 to 1; unit: (1 + cosine) / 2."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        for prompt in filter(self.applies_to, prompts):
            try:
                self._others(prompt)
            except (ValueError, OSError) as error:
                raise UserError(f"reward {self.name} can't score {prompt.name}: {error}") from None

    def values(self, model: Any, pixels: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        import torch

        own = model.images(pixels)
        others = [torch.stack([model.embedded(other) for other in self._others(prompt)]) for prompt in prompts]
        cosine = torch.stack([(rows @ row).mean() for row, rows in zip(own, others, strict=True)])
        return (1 + cosine) / 2 if self.mapping == "unit" else cosine

    def _others(self, prompt: Prompt) -> tuple[Media, ...]:
        """The images that an image of a prompt is compared with.

        Raises:
            ValueError: there is none.
            OSError: it can't be read.
        """
        if self.against is None:
            if not prompt.images:
                raise ValueError("it shows no image; give one in the record's image, or set against to another key")
            return prompt.images
        named = prompt.info.get(self.against)
        if not isinstance(named, str):
            raise ValueError(f"its record has no {self.against} that names an image")
        return (Media.file(named),)


@register("flow reward", "image_variety")
class ImageVariety(Embedding, LearnedReward):
    """How far an image is from the others of its prompt: 1 - the mean cosine of its embedding and theirs, by CLIP,
    SigLIP, DINO, DINOv2 or DINOv3; 0 if all are alike. Clips are compared frame by frame. NAME_nearest is the same for
    the one that is most alike.
    """

    numbers: ClassVar[tuple[str, ...]] = ("nearest",)
    judged: ClassVar[str] = "samples"
    higher_is_better: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False  # it depends on the other samples
    reads: ClassVar[tuple[Kind, ...]] = ("image", "clip")

    path: str = "facebook/dinov2-base"
    """Directory, or org/name on the Hugging Face hub, of the network. That of another reward is loaded once, if dtype
    and device are the same."""

    def compares(self) -> Compared:
        return "groups"

    def score(
        self, images: Sequence[np.ndarray | Clip], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING
    ) -> list[Score]:
        import torch

        model = self.load()

        def embeddings(batch: Sequence[np.ndarray]) -> Sequence[Tensor]:
            return model.images(model.preprocessing.images(batch).to(self.device)).cpu().unbind(0)

        scores = [Score(None, applicable=False)] * len(images)  # a sample without others has nothing to differ from
        groups = [rows for rows in inputs.groups(prompts) if len(rows) > 1]
        parts = {row: images_of(images[row]) for rows in groups for row in rows}
        embedded = iter(
            self.in_batches(model.network, [image for part in parts.values() for image in part], embeddings)
        )
        whole = {row: torch.stack([next(embedded) for _ in part]) for row, part in parts.items()}
        for rows in groups:
            each = torch.stack([whole[row] for row in rows]).flatten(1)  # [N, frames * D]
            cosine = each @ each.T / len(whole[rows[0]])
            others = (cosine.sum(1) - cosine.diagonal()) / (len(rows) - 1)
            nearest = cosine.fill_diagonal_(-torch.inf).amax(1)
            for row, *values in zip(rows, (1 - others).tolist(), (1 - nearest).tolist(), strict=True):
                scores[row] = Score(values[0], numbers={"nearest": values[1]})
        return scores
