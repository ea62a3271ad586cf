"""Tiny random checkpoints of learned rewards, in the layouts in which the real ones are published."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.models.loading import quietly
from burnish.models.tiny.language.build import draw_weights
from burnish.models.tiny.tokenizers import clip, sentence_pieces, t5, vocabulary
from burnish.models.tiny.words import TEXT
from burnish.rewards.blip import FILE as BLIP_FILE
from burnish.rewards.blip import HEAD, LAYERS
from burnish.rewards.blip import TEXT as READING
from burnish.rewards.blip import VISION as SEEING
from burnish.rewards.headed import tiny as headed
from burnish.rewards.images.clip_scores import RELEASES
from burnish.rewards.open_clip import FILE as OPEN_CLIP_FILE
from burnish.rewards.preprocessing import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD
from burnish.rewards.preprocessing import FILE as PREPROCESSOR

if TYPE_CHECKING:
    from torch import Tensor

SIZE, PATCH = 56, 14  # pixels of a picture, and of a patch
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
SEES = {**TOWER, "image_size": SIZE, "patch_size": PATCH}
SHARED = 24  # width of the space of pictures and texts
WIDTH = 128  # of BLIP's towers: two heads


@dataclass(frozen=True)
class TinyScorer:
    """A learned reward at a size that a CPU runs in milliseconds."""

    name: str
    """Of the reward."""
    write: Callable[[Path, int], None]
    """Writes a checkpoint of a seed into a folder."""
    options: Mapping[str, str | list[str] | None]
    """Of the reward, for such a folder: DIR stands for it."""

    def given(self, folder: Path) -> dict[str, Any]:
        """The options for a folder."""

        def placed(value: Any) -> Any:
            if isinstance(value, list):
                return [placed(one) for one in value]
            return value.replace("DIR", str(folder)) if isinstance(value, str) else value

        return {name: placed(value) for name, value in self.options.items()}


def _clip(folder: Path, seed: int, act: str = "quick_gelu") -> None:
    from transformers import CLIPConfig, CLIPModel

    reader = clip()
    words = {"vocab_size": len(reader), "eos_token_id": reader.eos_token_id, "bos_token_id": reader.bos_token_id}
    config = CLIPConfig(
        text_config={**TOWER, **words, "max_position_embeddings": 77, "projection_dim": SHARED, "hidden_act": act},
        vision_config={**SEES, "projection_dim": SHARED, "hidden_act": act},
        projection_dim=SHARED,
    )
    _save(CLIPModel, config, folder, seed)
    reader.save_pretrained(folder)
    _describe(folder, {"shortest_edge": SIZE}, CLIP_MEAN, CLIP_STD, crop=SIZE)


def _pickscore(folder: Path, seed: int) -> None:
    _clip(folder, seed, "gelu")  # it descends from a CLIP of open_clip


def _siglip(folder: Path, seed: int) -> None:
    reader = t5()
    reader.pad_token = reader.eos_token  # SigLIP pads with the end
    _siglip_network(folder, seed, reader)


def _siglip2(folder: Path, seed: int) -> None:
    from transformers import Siglip2Tokenizer

    words, merges = sentence_pieces(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
    kind: Any = Siglip2Tokenizer
    _siglip_network(folder, seed, kind(vocab=words, merges=merges, padding_side="right", model_max_length=64))


def _siglip_network(folder: Path, seed: int, reader: Any) -> None:
    from transformers import SiglipConfig, SiglipModel

    words = {"vocab_size": len(reader), "max_position_embeddings": 64, "projection_size": TOWER["hidden_size"]}
    ends = {name: getattr(reader, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _save(SiglipModel, SiglipConfig(text_config={**TOWER, **words, **ends}, vision_config=SEES), folder, seed)
    reader.save_pretrained(folder)
    _describe(folder, {"height": SIZE, "width": SIZE}, HALF, HALF)


def _dino(folder: Path, seed: int) -> None:
    from transformers import Dinov2Config, Dinov2Model

    _save(Dinov2Model, Dinov2Config(**SEES), folder, seed)
    _describe(folder, {"shortest_edge": SIZE + 8}, IMAGENET_MEAN, IMAGENET_STD, crop=SIZE)


def _save(kind: Any, config: Any, folder: Path, seed: int) -> None:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = kind(config).eval()
    draw_weights(network, seed)
    network.save_pretrained(folder)


def _describe(folder: Path, size: Mapping[str, int], mean: Any, std: Any, crop: int | None = None) -> None:
    told = {"do_resize": True, "size": size, "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255,
            "do_normalize": True, "image_mean": mean, "image_std": std, "do_center_crop": crop is not None}  # fmt: skip
    (folder / PREPROCESSOR).write_text(json.dumps(told if crop is None else told | {"crop_size": crop}))


def _drawn(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Tensors by their names: matrices of such a size that what passes through neither grows nor fades."""
    import torch

    from burnish.utils.random import generator

    found = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator(seed, "tiny", name))
        inputs = max(torch.Size(shape[1:]).numel(), 1)
        flat = 1.0 if name.endswith("weight") else 0.0
        found[name] = noise * (1.5 / inputs**0.5) if len(shape) > 1 else flat + 0.1 * noise
    return found


def _blocks(prefix: str, count: int, width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of open_clip's transformer."""
    wide = 4 * width
    parts = {
        "attn.in_proj_weight": (3 * width, width), "attn.in_proj_bias": (3 * width,),
        "attn.out_proj.weight": (width, width), "attn.out_proj.bias": (width,),
        "mlp.c_fc.weight": (wide, width), "mlp.c_fc.bias": (wide,),
        "mlp.c_proj.weight": (width, wide), "mlp.c_proj.bias": (width,),
        **{f"ln_{i}.{part}": (width,) for i in (1, 2) for part in ("weight", "bias")},
    }  # fmt: skip
    return {f"{prefix}.resblocks.{n}.{name}": shape for n in range(count) for name, shape in parts.items()}


def _hpsv2(folder: Path, seed: int) -> None:
    """open_clip's layout, with the wrapping and the names of the published file."""
    import torch

    reader, width = clip(), TOWER["hidden_size"]
    vision = {"image_size": SIZE, "layers": 2, "width": width, "head_width": width // 2, "patch_size": PATCH}
    text = {"context_length": 77, "vocab_size": len(reader), "width": width, "heads": 2, "layers": 2}
    told = {"model_cfg": {"embed_dim": SHARED, "vision_cfg": vision, "text_cfg": text}}
    norms = ("visual.ln_pre", "visual.ln_post", "ln_final")
    weights = _drawn({
        "visual.conv1.weight": (width, 3, PATCH, PATCH), "visual.class_embedding": (width,),
        "visual.positional_embedding": ((SIZE // PATCH) ** 2 + 1, width), "visual.proj": (width, SHARED),
        "text_projection": (width, SHARED), "positional_embedding": (77, width),
        "token_embedding.weight": (len(reader), width),
        **{f"{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")},
        **_blocks("visual.transformer", 2, width), **_blocks("transformer", 2, width),
    }, seed)  # fmt: skip
    weights["logit_scale"] = torch.tensor(4.6)
    torch.save({"state_dict": weights}, folder / RELEASES["v2.1"])
    (folder / OPEN_CLIP_FILE).write_text(json.dumps(told))
    reader.save_pretrained(folder)


def _image_reward(folder: Path, seed: int) -> None:
    """BLIP's own layout, with the name of the published file."""
    import torch
    from transformers import BertTokenizer

    letters = [chr(code) for code in range(33, 127)]
    words = sorted({word for word in TEXT.lower().split() if word.isalpha()})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    kind: Any = BertTokenizer
    reader = kind(vocab=vocabulary([*special, *letters, *(f"##{one}" for one in letters), *words]))
    shapes = {SEEING + name: shape for name, shape in _blip_vision().items()}
    shapes |= {READING + name: shape for name, shape in _blip_text(len(reader) + 2).items()}
    chain = (WIDTH, 24, 16, 8, 4, 1)
    for layer, (before, after) in zip(LAYERS, pairwise(chain), strict=True):
        shapes |= {f"{HEAD}{layer}.weight": (after, before), f"{HEAD}{layer}.bias": (after,)}
    torch.save(_drawn(shapes, seed), folder / BLIP_FILE)
    reader.save_pretrained(folder)


def _linear(name: str, after: int, before: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (after, before), f"{name}.bias": (after,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def _blip_vision() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, WIDTH), "pos_embed": (1, (SIZE // PATCH) ** 2 + 1, WIDTH),
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,), **_norm("norm"),
    }  # fmt: skip
    for n in range(2):
        at = f"blocks.{n}"
        shapes |= _norm(f"{at}.norm1") | _norm(f"{at}.norm2") | _linear(f"{at}.attn.qkv", 3 * WIDTH, WIDTH)
        shapes |= _linear(f"{at}.attn.proj", WIDTH, WIDTH) | _linear(f"{at}.mlp.fc1", 2 * WIDTH, WIDTH)
        shapes |= _linear(f"{at}.mlp.fc2", WIDTH, 2 * WIDTH)
    return shapes


def _blip_text(words: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (words, WIDTH), "embeddings.position_embeddings.weight": (64, WIDTH),
        **_norm("embeddings.LayerNorm"),
    }  # fmt: skip
    for n in range(2):
        at = f"encoder.layer.{n}"
        for attention in ("attention", "crossattention"):
            for part in ("self.query", "self.key", "self.value", "output.dense"):
                shapes |= _linear(f"{at}.{attention}.{part}", WIDTH, WIDTH)
            shapes |= _norm(f"{at}.{attention}.output.LayerNorm")
        shapes |= _linear(f"{at}.intermediate.dense", 2 * WIDTH, WIDTH) | _norm(f"{at}.output.LayerNorm")
        shapes |= _linear(f"{at}.output.dense", WIDTH, 2 * WIDTH)
    return shapes


def _aesthetic(folder: Path, seed: int) -> None:
    import torch

    _clip(folder, seed)
    chain = (SHARED, 32, 16, 8, 4, 1)
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (before, after) in zip((0, 2, 4, 6, 7), pairwise(chain), strict=True):
        shapes |= _linear(f"layers.{i}", after, before)
    (folder / "head").mkdir(exist_ok=True)
    torch.save(_drawn(shapes, seed), folder / "head" / "sac+logos+ava1-l14-linearMSE.pth")


def _mask2former(folder: Path, seed: int) -> None:
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    swin = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1]}
    stages = [f"stage{i}" for i in range(1, 5)]
    backbone = SwinConfig(**swin, window_size=4, out_features=stages)
    sizes = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "num_attention_heads": 2}
    layers = {"encoder_layers": 1, "decoder_layers": 3, "encoder_feedforward_dim": 32, "dim_feedforward": 32}
    config = Mask2FormerConfig(backbone_config=backbone, num_queries=10, num_labels=80, **sizes, **layers)
    _save(Mask2FormerForUniversalSegmentation, config, folder, seed)
    _clip(folder / "clip", seed)


BESIDE = {"path": "DIR", "tokenizer": None}
SCORERS = (
    TinyScorer("pickscore", _pickscore, BESIDE),
    TinyScorer("clip", _clip, {"path": "DIR"}),
    TinyScorer("siglip", _siglip, {"path": "DIR"}),
    TinyScorer("siglip2", _siglip2, {"path": "DIR"}),
    TinyScorer("hpsv2", _hpsv2, BESIDE),
    TinyScorer("imagereward", _image_reward, BESIDE),
    TinyScorer("aesthetic", _aesthetic, {"path": "DIR", "head": "DIR/head"}),
    TinyScorer("image_similarity", _dino, {"path": "DIR"}),
    TinyScorer("image_variety", _dino, {"path": "DIR"}),
    TinyScorer("geneval_mask2former", _mask2former, {"path": "DIR", "clip": "DIR/clip"}),
    TinyScorer("hpsv3", headed.hpsv3, headed.options()),
    TinyScorer("editreward", headed.editreward, headed.options(template=["DIR/template_0.txt", "DIR/template_1.txt"])),
    TinyScorer("videoalign", headed.videoalign, headed.options()),
)


def write(scorer: TinyScorer, folder: Path, seed: int) -> None:
    """Write a checkpoint into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with quietly():
        scorer.write(folder, seed)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes them for their owner alone


def scorer_named(name: str) -> TinyScorer | None:
    """The scorer of that name, or None."""
    return next((one for one in SCORERS if one.name == name), None)
