"""Rewards by published networks that look at images: PickScore, CLIP, SigLIP, HPSv2, ImageReward, aesthetics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from burnish.registry import options, register
from burnish.rewards.base import Reward, Score
from burnish.rewards.networks.contrastive import Contrastive, clip_complaint, load_contrastive
from burnish.rewards.networks.inputs import Preprocessing, as_open_clip, as_siglip, token_ids, tokenizer_of
from burnish.rewards.networks.loading import (
    CONFIG,
    NetworkOptions,
    Source,
    filled,
    frozen,
    linear_layers,
    network_complaint,
    read_weights,
    refusal,
    renamed,
    weight_file,
)
from burnish.utils.errors import UserError
from burnish.utils.hub import WORDS
from burnish.utils.json_text import read_object
from burnish.utils.weights import tokenizer_complaint

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt

CLIP_H = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
RELEASES = {"v2": "HPS_v2_compressed.pt", "v2.1": "HPS_v2.1_compressed.pt"}


@options
class LearnedReward(NetworkOptions, Reward):
    """Base of rewards by a network whose weights somebody published.

    A subclass says in ``sources`` what it loads, and loads it in ``load``, once per process: by functions with
    ``functools.cache`` whose arguments are folders, ``dtype`` and ``resting``, so that two rewards share a network.
    """

    if_cached: bool = False
    """Leave the reward out where its weights are not on this machine, or where another reward is by the same ones. For
    what is watched with weight 0."""

    @model_validator(mode="after")
    def _counts_everywhere(self) -> Self:
        if self.if_cached and self.counts:
            raise ValueError(
                f"if_cached is true, but weight is {self.weight:g}: another machine would train for something else; "
                "set weight to 0, or leave if_cached out"
            )
        return self

    def gradient_refusal(self) -> str:
        refusal = super().gradient_refusal()
        if not refusal and self.put_away:
            return "its weights are put away after every batch, and gradients need them; set put_away=false"
        return refusal


@dataclass(frozen=True)
class PixelModel:
    """A network that reads squares of pixels, how images become such, and the value [B] of them."""

    network: Any
    preprocessing: Preprocessing
    value: Callable[..., Tensor]


@options
class PixelReward(LearnedReward):
    """Base of learned rewards with gradients to the pixels: a subclass gives ``load`` and ``values``."""

    def values(self, model: Any, pixels: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Values [B] of preprocessed pixels [B, 3, S, S], which are where the network is."""
        return model.value(pixels)  # type: ignore[no-any-return]

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Score]:
        model = self.load()

        def values(rows: Sequence[int]) -> list[float]:
            pixels = model.preprocessing.images([images[i] for i in rows]).to(self.device)
            return self.values(model, pixels, [prompts[i] for i in rows]).tolist()

        return [Score(value) for value in self.in_batches(model.network, range(len(images)), values)]

    def differentiable(self, images: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        model = self.load()
        return self.values(model, model.preprocessing(images.to(self.device)), prompts).to(images.device)


@options
class PromptedReward(PixelReward):
    """Base of those that read the prompt, too."""

    tokenizer: str | None = None
    """Directory, or org/name on the hub, of the tokenizer; null takes the one beside the weights."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the file of weights, if it is published under one of its own."""
        return ()

    @property
    def vocabulary(self) -> Path:
        """The folder of the tokenizer."""
        place = self.folder(self.sources()[-1])
        return place if place.is_dir() else place.parent

    def sources(self) -> tuple[Source, ...]:
        weights = Source(index=self.names[0] if self.names else CONFIG, files=self.names, complaint=self._complaint)
        if self.tokenizer is None:
            return (weights,)
        return weights, Source("tokenizer", "tokenizer_config.json", WORDS, tokenizer_complaint)

    def _complaint(self, place: Path) -> str:
        why = self.network_complaint(place)
        if not why and self.tokenizer is None and tokenizer_complaint(self.vocabulary):
            return f"{self.vocabulary} has no tokenizer beside the weights; give one as tokenizer"
        return why

    def network_complaint(self, place: Path) -> str:
        """Why there is no network that it can load, or ""."""
        return refusal(weight_file, place, self.names)


# the reward of cosines [B] between images and prompts
SCALES: dict[str, Callable[[Contrastive, Tensor], Tensor]] = {
    "cosine": lambda model, cosine: cosine,
    "x100": lambda model, cosine: 100.0 * cosine.clamp(min=0),
    "x2.5": lambda model, cosine: 2.5 * cosine.clamp(min=0),
    "logit": lambda model, cosine: model.logits(cosine),
    "raw": lambda model, cosine: model.logits(cosine),
    "per_26": lambda model, cosine: model.logits(cosine) / 26,
    "probability": lambda model, cosine: model.logits(cosine).sigmoid(),
}


@options
class ContrastiveReward(PromptedReward):
    """Base of rewards that compare the embeddings of an image and its prompt."""

    families: ClassVar[tuple[str, ...]] = ("clip",)
    padded: ClassVar[bool] = False
    clean: ClassVar[Callable[[str], str]] = str  # makes of a prompt what is read
    scale = "cosine"

    def words(self, text: str) -> str:
        """A prompt as it is read."""
        return type(self).clean(text)

    def network_complaint(self, place: Path) -> str:
        return (
            network_complaint(place, self.families) if "siglip" in self.families else clip_complaint(place, self.names)
        )

    def load(self) -> Contrastive:
        tokenizer_of(self.vocabulary)
        return load_contrastive(self.folder(), self.dtype, self.resting, self.names, self.padded)

    def values(self, model: Any, pixels: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        texts = [self.words(prompt.text) for prompt in prompts]
        read = model.texts(texts, tokenizer_of(self.vocabulary), self.batch_size)
        return SCALES[self.scale](model, (model.images(pixels) * read).sum(-1))


@register("flow reward", "pickscore")
class PickScore(ContrastiveReward):
    """PickScore (Kirstain et al. 2023, arXiv:2305.01569): which image of a prompt people would pick."""

    path: str = "yuvalkirstain/PickScore_v1"
    """Directory, or org/name on the Hugging Face hub, of the network."""
    tokenizer: str | None = CLIP_H
    """Directory, or org/name on the hub, of the tokenizer; null takes the one beside the weights."""
    scale: Literal["raw", "per_26"] = "raw"
    """raw: exp(logit scale) * cosine, mostly 17 to 24. per_26: divided by 26, as Flow-GRPO trains with it."""


@register("flow reward", "clip")
class ClipScore(ContrastiveReward):
    """Cosine of a CLIP's embeddings of image and prompt, by one of the scales in use."""

    path: str = "openai/clip-vit-large-patch14"
    """Directory, or org/name on the Hugging Face hub, of the network; folders in open_clip's layout are read, too."""
    scale: Literal["cosine", "x100", "x2.5"] = "cosine"
    """cosine; x100: 100 * max(cosine, 0), as torchmetrics has it; x2.5: 2.5 * max(cosine, 0), the paper's (Hessel et
    al. 2021, arXiv:2104.08718)."""
    prefix: str = ""
    """Put before every prompt; the paper's is "A photo depicts ", with the space."""

    def words(self, text: str) -> str:
        return self.prefix + text


@options
class SiglipReward(ContrastiveReward):
    """Base of SigLIP's rewards."""

    families: ClassVar[tuple[str, ...]] = ("siglip",)

    scale: Literal["probability", "logit", "cosine"] = "probability"
    """logit: exp(scale) * cosine + bias; probability: its sigmoid, that image and prompt belong together."""


@register("flow reward", "siglip")
class Siglip(SiglipReward):
    """Whether SigLIP (Zhai et al. 2023, arXiv:2303.15343) takes image and prompt to belong together."""

    clean: ClassVar[Callable[[str], str]] = as_siglip

    path: str = "google/siglip-so400m-patch14-384"
    """Directory, or org/name on the Hugging Face hub, of the network."""


@register("flow reward", "siglip2")
class Siglip2(SiglipReward):
    """Whether SigLIP 2 (Tschannen et al. 2025, arXiv:2502.14786) takes image and prompt to belong together."""

    clean: ClassVar[Callable[[str], str]] = str.lower

    path: str = "google/siglip2-so400m-patch14-384"
    """Directory, or org/name on the Hugging Face hub, of the network; of one resolution, not NaFlex."""


@register("flow reward", "hpsv2")
class HpsV2(ContrastiveReward):
    """HPSv2 (Wu et al. 2023, arXiv:2306.09341): which image people would prefer; a cosine, mostly .2 to .35."""

    padded: ClassVar[bool] = True
    clean: ClassVar[Callable[[str], str]] = as_open_clip

    version: Literal["v2", "v2.1"] = "v2.1"
    """Release of the weights: HPS_v2_compressed.pt or HPS_v2.1_compressed.pt."""
    path: str = "xswu/HPSv2"
    """Directory or file, or org/name on the Hugging Face hub, of the weights: in open_clip's layout (.pt or
    .safetensors), or in that of transformers."""
    tokenizer: str | None = CLIP_H
    """Directory, or org/name on the hub, of the tokenizer; null takes the one beside the weights."""

    @property
    def names(self) -> tuple[str, ...]:
        return (RELEASES[self.version],)


BLIP_FILE = "ImageReward.pt"
BLIP_NAMES = (
    ("blip.visual_encoder.", "vision."), ("blip.text_encoder.", "text."), ("vision.norm.", "vision.post_layernorm."),
    ("vision.blocks.", "vision.encoder.layers."), (".attn.qkv.", ".self_attn.qkv."),
    (".attn.proj.", ".self_attn.projection."), (".norm1.", ".layer_norm1."), (".norm2.", ".layer_norm2."),
    ("vision.cls_token", "vision.embeddings.class_embedding"),
    ("vision.pos_embed", "vision.embeddings.position_embedding"),
    ("vision.patch_embed.proj.", "vision.embeddings.patch_embedding."),
)  # fmt: skip
# of BLIP's pre-training, and a buffer
BLIP_UNUSED = ("blip.vision_proj.", "blip.text_proj.", "blip.text_encoder.embeddings.position_ids")
BLIP_HEAD = "mlp."
BLIP_SIZES = "blip_config.json"  # beside weights of another size than the published ones, which have these
BLIP_LARGE: dict[str, dict[str, int]] = {
    "vision": {
        "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24, "intermediate_size": 4096,
        "patch_size": 16, "image_size": 224,
    },
    "text": {
        "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "intermediate_size": 3072,
        "vocab_size": 30524, "max_position_embeddings": 512, "encoder_hidden_size": 1024,
    },
}  # fmt: skip


@register("flow reward", "imagereward")
class ImageReward(PromptedReward):
    """ImageReward (Xu et al. 2023, arXiv:2304.05977): what people prefer, of mean 0, variance 1 on its authors' data.

    Reads 35 tokens of a prompt.
    """

    path: str = "zai-org/ImageReward"
    """Directory or file, or org/name on the Hugging Face hub, of the weights: ImageReward.pt, or the same as
    .safetensors."""
    tokenizer: str | None = "google-bert/bert-base-uncased"
    """Directory, or org/name on the hub, of the tokenizer; null takes the one beside the weights."""

    @property
    def names(self) -> tuple[str, ...]:
        return (BLIP_FILE,)

    def load(self) -> PixelModel:
        tokenizer_of(self.vocabulary)
        return _load_blip(weight_file(self.folder(), self.names), self.dtype, self.resting)

    def values(self, model: Any, pixels: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        from burnish.types.batch import to_device

        texts, reader = [prompt.text for prompt in prompts], tokenizer_of(self.vocabulary)
        ids, mask = (to_device(one, pixels.device) for one in token_ids(reader, texts, 35))
        mean, std = 0.16717362830052426, 1.0333394966054072  # of the raw values on its authors' data
        return (model.value(pixels, ids, mask) - mean) / std  # type: ignore[no-any-return]


@cache
def _load_blip(file: Path, dtype: str, device: str) -> PixelModel:
    """An image's encoder, a text encoder that looks at it, and a head on the first token, in float32."""
    published = {name: one for name, one in read_weights(file).items() if not name.startswith(BLIP_UNUSED)}
    head = {name: one for name, one in published.items() if name.startswith(BLIP_HEAD)}
    weights = {renamed(name, BLIP_NAMES): one for name, one in published.items() if name not in head}
    beside = file.parent / BLIP_SIZES
    sizes = read_object(beside) if beside.is_file() else BLIP_LARGE
    network: Any = filled(lambda: blip_towers(**sizes), weights, file, dtype)
    network["head"] = linear_layers(head, file)
    preprocessing = Preprocessing(size=sizes["vision"]["image_size"], rounded=True)
    return PixelModel(frozen(network, file, device), preprocessing, partial(_blip_value, network))


def _blip_value(network: Any, pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """The head's value [B] of pixels [B, 3, S, S] and tokens [B, T], with gradients to the pixels."""
    seen = network["vision"](pixel_values=pixels.to(network["vision"].dtype)).last_hidden_state
    read = network["text"](
        input_ids=ids, attention_mask=mask, encoder_hidden_states=seen,
        is_decoder=False,  # tokens see each other both ways
    )  # fmt: skip
    return network["head"](read.last_hidden_state[:, 0].float())[:, 0]  # type: ignore[no-any-return]


def blip_towers(vision: Mapping[str, int], text: Mapping[str, int]) -> Any:
    """Both of BLIP's encoders, of these sizes."""
    import torch
    from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

    # without is_decoder the class builds nothing that looks at the image
    reads: Any = BlipTextConfig(
        **text, layer_norm_eps=1e-12, is_decoder=True, bos_token_id=None, eos_token_id=None, sep_token_id=None
    )
    sees: Any = BlipVisionConfig(**vision, layer_norm_eps=1e-6, hidden_act="gelu")
    return torch.nn.ModuleDict({"vision": BlipVisionModel(sees), "text": BlipTextModel(reads, add_pooling_layer=False)})


ON_HUB = "aesthetic-model.pth"
AESTHETIC_FILES = {
    "v1": ("sa_0_4_vit_l_14_linear.pth",),
    "v2": ("sac+logos+ava1-l14-linearMSE.pth", ON_HUB),
    "v2.5": ("aesthetic_predictor_v2_5.pth",),
}


@register("flow reward", "aesthetic")
class Aesthetic(PixelReward):
    """LAION's aesthetic score, mostly 1 to 10; the prompt is not read.

    It is one direction in the space of embeddings, easily climbed by what nobody likes: best watched, with weight 0.
    """

    version: Literal["v1", "v2", "v2.5"] = "v2"
    """v1: one layer on CLIP ViT-L/14. v2: five layers without activations on the same, the one in most use. v2.5: five
    on SigLIP, for weights of your own (their licence is AGPL-3.0)."""
    path: str = "openai/clip-vit-large-patch14"
    """Directory, or org/name on the Hugging Face hub, of CLIP; of SigLIP for v2.5."""
    head: str = "trl-lib/ddpo-aesthetic-predictor"
    """File or directory, or org/name on the hub, of the layers; the one on the hub is v2's."""

    def sources(self) -> tuple[Source, ...]:
        network = partial(network_complaint, families=("siglip",)) if self.version == "v2.5" else clip_complaint
        layers = partial(refusal, weight_file, names=AESTHETIC_FILES[self.version])
        return Source(complaint=network), Source("head", ON_HUB, (ON_HUB,), layers)

    def load(self) -> PixelModel:
        head = weight_file(self.folder(self.sources()[1]), AESTHETIC_FILES[self.version])
        return _load_aesthetic(self.folder(), head, self.dtype, self.resting)


@cache
def _load_aesthetic(place: Path, file: Path, dtype: str, device: str) -> PixelModel:
    from torch import nn

    encoder, head = load_contrastive(place, dtype, device, (), False), linear_layers(read_weights(file), file)
    config = encoder.network.config
    width = config.vision_config.hidden_size if encoder.siglip else config.projection_dim
    if head[0].in_features != width:
        raise UserError(
            f"head of reward aesthetic reads {head[0].in_features} numbers, but the network of path gives {width}; "
            "give the network that its version belongs to"
        )
    network = nn.ModuleDict({"encoder": encoder.network, "head": frozen(head, file, device)})
    return PixelModel(network, encoder.preprocessing, lambda pixels: head(encoder.images(pixels))[:, 0])
