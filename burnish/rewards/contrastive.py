"""Networks that embed pictures and texts alike: CLIP and SigLIP, as rewards and measures of similarity use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.rewards.images.learned import CONFIG, batches, frozen, load_strictly, read_weights, refusal, weight_file
from burnish.rewards.open_clip import FILE as OPEN_CLIP_CONFIG
from burnish.rewards.open_clip import MARK
from burnish.rewards.open_clip import network as from_open_clip
from burnish.rewards.preprocessing import HALF, Preprocessing, read_preprocessing
from burnish.rewards.prompt_text import CLIP_LENGTH, SIGLIP_LENGTH, token_ids
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.lru_cache import LruCache
from burnish.utils.weights import complaints_about

if TYPE_CHECKING:
    from torch import Tensor, nn

KEPT = 4096  # texts whose embeddings are kept
FAMILIES = ("clip", "siglip")


class Contrastive:
    """A network with what reads pictures for it. It never learns."""

    def __init__(self, network: Any, preprocessing: Preprocessing) -> None:
        self.network = network
        self.siglip: bool = self.network.config.model_type == "siglip"
        wanted = self.network.config.vision_config.image_size
        if preprocessing.size != wanted:
            raise UserError(f"pictures become {preprocessing.size} pixels wide, but the network reads {wanted}")
        self.preprocessing = preprocessing
        self._kept: LruCache[Tensor] = LruCache(KEPT)

    def images(self, pixels: Tensor) -> Tensor:
        """Embeddings of length 1 of pixels: [B, D] float32, with gradients to them."""
        found = self.network.vision_model(pixel_values=pixels.to(self.network.dtype)).pooler_output
        return of_length_one(found if self.siglip else self.network.visual_projection(found))

    def texts(self, texts: Sequence[str], tokenizer: Any, batch_size: int) -> Tensor:
        """Embeddings of length 1 of texts, without gradients: [B, D] float32. Each distinct text is read once."""
        import torch

        from burnish.types.batch import to_device

        found: dict[str, Tensor] = {}
        for text in set(texts):
            if (row := self._kept.find((id(tokenizer), text))) is not None:
                found[text] = row
        with torch.no_grad():
            for some in batches([text for text in dict.fromkeys(texts) if text not in found], batch_size):
                for text, row in zip(some, self._read(some, tokenizer).cpu(), strict=True):
                    found[text] = self._kept.get((id(tokenizer), text), partial(torch.clone, row))
        return to_device(torch.stack([found[text] for text in texts]), self.network.device)

    def _read(self, texts: Sequence[str], tokenizer: Any) -> Tensor:
        length = SIGLIP_LENGTH if self.siglip else CLIP_LENGTH
        length = min(length, self.network.config.text_config.max_position_embeddings)
        ids, mask = (one.to(self.network.device) for one in token_ids(tokenizer, texts, length, fill=self.siglip))
        if self.siglip:  # it learned with padding that it sees, and reads the last token
            return of_length_one(self.network.text_model(input_ids=ids).pooler_output)
        found = self.network.text_model(input_ids=ids, attention_mask=mask).pooler_output
        return of_length_one(self.network.text_projection(found))

    def logits(self, cosine: Tensor) -> Tensor:
        """Cosines as the network was trained to make them pair up."""
        scaled: Tensor = cosine * self.network.logit_scale.float().exp()
        return scaled + self.network.logit_bias.float() if self.siglip else scaled


def of_length_one(x: Tensor) -> Tensor:
    """Rows divided by their lengths, in float32."""
    wide = x.float()
    length: Tensor = wide.norm(dim=-1, keepdim=True)
    return wide / length


def load_contrastive(
    place: Path, dtype: str, device: str, names: tuple[str, ...] = (), padded: bool = False
) -> Contrastive:
    """CLIP or SigLIP of a folder, loaded once, however many rewards use it.

    Args:
        place: folder in the layout of transformers, or folder or file in open_clip's.
        dtype, device: of the network.
        names: of the file of weights, where it is published under one of its own.
        padded: pictures are padded to a square, as HPSv2 does it.

    Raises:
        UserError: it can't be loaded.
    """
    return _load(place, dtype, device, names, padded)


@cache
def _load(place: Path, dtype: str, device: str, names: tuple[str, ...], padded: bool) -> Contrastive:
    network = _network(place, dtype, device, names)
    config: Any = network.config
    size = config.vision_config.image_size
    usual = Preprocessing(size=size)
    if config.model_type == "siglip":
        usual = Preprocessing(size=size, fit="stretch", mean=HALF, std=HALF)
    if padded:
        usual = replace(usual, fit="pad")
    elif place.is_dir():
        usual = read_preprocessing(place, usual)
    try:
        return Contrastive(network, usual)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


def _network(place: Path, dtype: str, device: str, names: tuple[str, ...]) -> nn.Module:
    if _is_of_transformers(place):
        from transformers import CLIPModel, SiglipModel

        kind = SiglipModel if family_of(place) == "siglip" else CLIPModel
        return load_strictly(kind, place, dtype=dtype, device=device)  # type: ignore[no-any-return]
    file = weight_file(place, names)
    weights = read_weights(file)
    if MARK not in weights:
        raise UserError(f"{file} has no {MARK}: it is not a CLIP in open_clip's layout; give the file of this scorer")
    return frozen(from_open_clip(weights, file, file.parent), file, dtype=dtype, device=device)


def _is_of_transformers(place: Path) -> bool:
    return (place / CONFIG).is_file() and not (place / OPEN_CLIP_CONFIG).is_file()


def family_of(folder: Path) -> str:
    """The family of a network in the layout of transformers.

    Raises:
        UserError: it is neither CLIP nor SigLIP.
    """
    found = read_object(folder / CONFIG).get("model_type")
    if found not in FAMILIES:
        more = "; of SigLIP 2 take a model of one resolution, not NaFlex" if found == "siglip2" else ""
        raise UserError(
            f"{folder} is a {found}, which is neither CLIP nor SigLIP{more}; give the folder of one of these"
        )
    return str(found)


def contrastive_complaint(place: Path, names: tuple[str, ...], families: Sequence[str]) -> str:
    """Why a folder or a file can't be loaded as one of these families, or "": seen without loading it."""
    if _is_of_transformers(place):
        try:
            found = family_of(place)
        except UserError as error:
            return str(error)
        if found not in families:
            return f"{place} is a {found}, but this reward takes {' or '.join(families)}"
        return "; ".join(complaints_about(place))
    if "clip" not in families:
        return f"{place} has no {CONFIG}; give the folder of a model of transformers"
    return refusal(weight_file, place, names)
