"""Networks that embed images and texts alike: CLIP and SigLIP, in the layouts of transformers and of open_clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.rewards.networks.inputs import HALF, Preprocessing, read_preprocessing, token_ids
from burnish.rewards.networks.loading import (
    CONFIG,
    batches,
    filled,
    frozen,
    load_strictly,
    network_complaint,
    read_weights,
    refusal,
    renamed,
    weight_file,
)
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.lru_cache import LruCache
from burnish.utils.reading import understood

if TYPE_CHECKING:
    from torch import Tensor, nn

    from burnish.types.media import Media

OPEN_CLIP = "open_clip_config.json"  # beside weights in open_clip's layout, in repositories of the hub
MARK = "visual.conv1.weight"  # a name that only this layout has
VIT_H_14: dict[str, Any] = {
    "embed_dim": 1024,
    "vision_cfg": {"image_size": 224, "layers": 32, "width": 1280, "head_width": 80, "patch_size": 14},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 1024, "heads": 16, "layers": 24},
}
OPEN_CLIP_NAMES = (
    ("visual.transformer.resblocks.", "vision_model.encoder.layers."),
    ("transformer.resblocks.", "text_model.encoder.layers."),
    (".attn.", ".self_attn."), (".ln_1.", ".layer_norm1."), (".ln_2.", ".layer_norm2."),
    (".mlp.c_fc.", ".mlp.fc1."), (".mlp.c_proj.", ".mlp.fc2."),
    ("visual.conv1.", "vision_model.embeddings.patch_embedding."),
    ("visual.class_embedding", "vision_model.embeddings.class_embedding"),
    ("visual.positional_embedding", "vision_model.embeddings.position_embedding.weight"),
    ("visual.ln_pre.", "vision_model.pre_layrnorm."), ("visual.ln_post.", "vision_model.post_layernorm."),
    ("token_embedding.", "text_model.embeddings.token_embedding."),
    ("positional_embedding", "text_model.embeddings.position_embedding.weight"),
    ("ln_final.", "text_model.final_layer_norm."),
    ("visual.proj", "visual_projection.weight"), ("text_projection", "text_projection.weight"),
)  # fmt: skip
TURNED = ("visual_projection.weight", "text_projection.weight")  # open_clip multiplies by them from the right


class Embedder:
    """A network whose first token stands for an image, what reads images for it, and embeddings that are asked for
    again. It never learns."""

    def __init__(self, network: Any, preprocessing: Preprocessing) -> None:
        self.network, self.preprocessing = network, preprocessing
        self.kept: LruCache[Tensor] = LruCache(4096)

    def images(self, pixels: Tensor) -> Tensor:
        """Embeddings of length 1 of pixels: [B, D] float32, with gradients to them."""
        return of_length_one(self.network(pixel_values=pixels.to(self.network.dtype)).last_hidden_state[:, 0])

    def embedded(self, image: Media) -> Tensor:
        """The embedding of an image that others are compared with, made once: [D]."""
        return self.kept.get(image.digest, lambda: self._embed(image)).to(self.network.device)

    def _embed(self, image: Media) -> Tensor:
        import numpy as np
        import torch

        with torch.no_grad():
            pixels = self.preprocessing.images([np.asarray(image.image())])
            return self.images(pixels.to(self.network.device))[0].cpu()


class Contrastive(Embedder):
    """CLIP or SigLIP."""

    def __init__(self, network: Any, preprocessing: Preprocessing) -> None:
        super().__init__(network, preprocessing)
        self.siglip: bool = network.config.model_type == "siglip"

    def images(self, pixels: Tensor) -> Tensor:
        found = self.network.vision_model(pixel_values=pixels.to(self.network.dtype)).pooler_output
        return of_length_one(found if self.siglip else self.network.visual_projection(found))

    def texts(self, texts: Sequence[str], tokenizer: Any, batch_size: int) -> Tensor:
        """Embeddings of length 1 of texts, without gradients: [B, D] float32. Each distinct text is read once."""
        import torch

        from burnish.types.batch import to_device

        known = {text: self.kept.find((id(tokenizer), text)) for text in texts}
        with torch.no_grad():
            for batch in batches([text for text, row in known.items() if row is None], batch_size):
                for text, row in zip(batch, self._read(batch, tokenizer).cpu(), strict=True):
                    known[text] = self.kept.get((id(tokenizer), text), partial(torch.clone, row))
        rows = [row for text in texts if (row := known[text]) is not None]
        return to_device(torch.stack(rows), self.network.device)

    def _read(self, texts: Sequence[str], tokenizer: Any) -> Tensor:
        length = min(64 if self.siglip else 77, self.network.config.text_config.max_position_embeddings)
        ids, mask = (tensor.to(self.network.device) for tensor in token_ids(tokenizer, texts, length, fill=self.siglip))
        if self.siglip:  # it learned with padding that it sees, and reads the last token
            return of_length_one(self.network.text_model(input_ids=ids).pooler_output)
        pooled = self.network.text_model(input_ids=ids, attention_mask=mask).pooler_output
        return of_length_one(self.network.text_projection(pooled))

    def logits(self, cosine: Tensor) -> Tensor:
        """Cosines as the network was trained to make them pair up."""
        scaled: Tensor = cosine * self.network.logit_scale.float().exp()
        return scaled + self.network.logit_bias.float() if self.siglip else scaled


def of_length_one(x: Tensor) -> Tensor:
    """Rows divided by their lengths, in float32."""
    import torch.nn.functional as F

    return F.normalize(x.float(), dim=-1)


@cache
def load_contrastive(place: Path, dtype: str, device: str, names: tuple[str, ...], padded: bool) -> Contrastive:
    """CLIP or SigLIP of a folder, loaded once, however many rewards use it.

    Args:
        place: folder in the layout of transformers, or folder or file in open_clip's.
        dtype, device: of the network.
        names: of the file of weights, where it is published under one of its own.
        padded: images are padded to a square, as HPSv2 does it.

    Raises:
        UserError: it can't be loaded.
    """
    network: Any = _network(place, dtype, device, names)
    size = network.config.vision_config.image_size
    usual = Preprocessing(size=size)
    if network.config.model_type == "siglip":
        usual = Preprocessing(size=size, fit="stretch", mean=HALF, std=HALF)
    if padded:
        usual = replace(usual, fit="pad")
    elif place.is_dir():
        usual = read_preprocessing(place, usual)
    return Contrastive(network, usual)


def _network(place: Path, dtype: str, device: str, names: tuple[str, ...]) -> nn.Module:
    from transformers import CLIPModel, SiglipModel

    if _is_of_transformers(place):
        kind = SiglipModel if read_object(place / CONFIG).get("model_type") == "siglip" else CLIPModel
        return load_strictly(kind, place, dtype=dtype, device=device)  # type: ignore[no-any-return]
    file = weight_file(place, names)
    weights = read_weights(file)
    if MARK not in weights:
        raise UserError(f"{file} has no {MARK}: it is not a CLIP in open_clip's layout; give the file of this scorer")
    config = _open_clip_config(file.parent / OPEN_CLIP)
    network: nn.Module = filled(lambda: CLIPModel(config), from_open_clip(weights), file, dtype)
    return frozen(network, file, device)


def from_open_clip(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in open_clip's layout by their names in transformers; of attention's joined projections each its third.

    Names that are not open_clip's stay, so that a strict load refuses them.
    """
    own: dict[str, Tensor] = {}
    for published, value in weights.items():
        name = renamed(published, OPEN_CLIP_NAMES)
        if ".in_proj_" in name:
            for part, third in zip("qkv", value.chunk(3), strict=True):
                own[name.replace(".in_proj_", f".{part}_proj.")] = third
        elif name != "attn_mask":  # the causal mask, which older checkpoints keep
            own[name] = value.T.contiguous() if name in TURNED else value
    return own


def _open_clip_config(file: Path) -> Any:
    """The configuration of CLIP in transformers that open_clip's file describes; ViT-H-14's if there is none.

    Raises:
        UserError: it is no description of a CLIP of that kind.
    """
    from transformers import CLIPConfig

    described: Any = read_object(file).get("model_cfg") if file.is_file() else VIT_H_14
    with understood(f"{file} does not describe a CLIP of open_clip with a vision transformer"):
        vision, text, width = described["vision_cfg"], described["text_cfg"], described["embed_dim"]
        act = "quick_gelu" if described.get("quick_gelu") else "gelu"
        shared = {"hidden_act": act, "projection_dim": width, "layer_norm_eps": 1e-5}
        return CLIPConfig(
            text_config={
                "vocab_size": text["vocab_size"], "max_position_embeddings": text["context_length"],
                "hidden_size": text["width"], "num_attention_heads": text["heads"],
                "num_hidden_layers": text["layers"], "intermediate_size": 4 * text["width"],
                "eos_token_id": text["vocab_size"] - 1, "bos_token_id": text["vocab_size"] - 2, **shared,
            },
            vision_config={
                "image_size": vision["image_size"], "patch_size": vision["patch_size"],
                "hidden_size": vision["width"],
                "num_attention_heads": vision["width"] // vision.get("head_width", 64),
                "num_hidden_layers": vision["layers"],
                "intermediate_size": int(vision.get("mlp_ratio", 4.0) * vision["width"]), **shared,
            },
            projection_dim=width,
        )  # fmt: skip


def _is_of_transformers(place: Path) -> bool:
    return (place / CONFIG).is_file() and not (place / OPEN_CLIP).is_file()


def clip_complaint(place: Path, names: Sequence[str] = ()) -> str:
    """Why a folder or a file can't be loaded as CLIP, or "": seen without loading it."""
    return network_complaint(place, ("clip",)) if _is_of_transformers(place) else refusal(weight_file, place, names)
