"""Tiny language models of real transformers classes, with real tokenizers and processors, for tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from burnish.language.model.base import Shown, Video

SEEING = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm"]
FAMILIES = [*SEEING, "llama", "qwen2", "qwen3_moe"]

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TILES = tuple(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))
SMOL = ("<fake_token_around_image>", "<global-img>", "<image>", *TILES)
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% elif part['type'] == 'video' %}VIDEO"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLACES = {
    "qwen": ("<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"),
    "smol": ("<image>", "<video>"),
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
READING: dict[str, tuple[str, dict[str, Any]]] = {  # beginnings of names of classes, and what is theirs alone
    "llama": ("Llama", {}), "mistral": ("Mistral", {}), "ministral": ("Ministral", {"head_dim": 6}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}), "qwen3_moe": ("Qwen3Moe", {"head_dim": 8, **EXPERTS}),
    "qwen3": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True}),
    "qwen2_moe": ("Qwen2Moe", {"shared_expert_intermediate_size": 16, **EXPERTS}),
}  # fmt: skip
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def build_tokenizer(kind: str, marks: Sequence[str] = ()) -> transformers.PreTrainedTokenizerFast:
    """A token per byte, the special tokens of a kind of family (qwen, smol or text), and further ones."""
    letters = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    further = {"qwen": QWEN, "smol": SMOL, "text": ()}[kind]
    made.add_special_tokens({"additional_special_tokens": [START, *further, *marks]})
    image, video = PLACES.get(kind, ("", ""))
    made.chat_template = CHAT.replace("IMAGE", image).replace("VIDEO", video)
    return made


def _decoder(tokenizer: Any, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer), "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, **more,
    }  # fmt: skip


def _rope(section: list[int] | None) -> dict[str, Any]:
    more = {} if section is None else {"mrope_section": section}
    return {"rope_type": "default", "rope_theta": 10000.0, **more}


def _qwen_ids(tokenizer: Any) -> dict[str, int]:
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return dict(zip(names, tokenizer.convert_tokens_to_ids(list(QWEN)), strict=True))


def _network(family: str, tokenizer: Any, more: dict[str, Any]) -> Any:
    text = _decoder(tokenizer, **more)
    merged = {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "depth": 3, "num_heads": 2}
    if family == "qwen2_vl":
        vision = merged | {"embed_dim": 16, "hidden_size": 24, "mlp_ratio": 2}
        text |= {"rope_parameters": _rope([1, 1, 1])}
        config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **_qwen_ids(tokenizer))
        return transformers.Qwen2VLForConditionalGeneration(config)
    if family == "qwen2_5_vl":
        vision = merged | {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 24}
        vision |= {"window_size": 16, "fullatt_block_indexes": [1]}
        text |= {"rope_parameters": _rope([1, 1, 1])}
        config = transformers.Qwen2_5_VLConfig(
            text_config=text, vision_config=vision, tie_word_embeddings=False, **_qwen_ids(tokenizer)
        )
        return transformers.Qwen2_5_VLForConditionalGeneration(config)
    if family == "qwen3_vl":
        vision = merged | {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 24}
        vision |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
        text |= {"head_dim": 12, "rope_parameters": _rope([2, 2, 2])}
        config = transformers.Qwen3VLConfig(
            text_config=text, vision_config=vision, tie_word_embeddings=True, **_qwen_ids(tokenizer)
        )
        return transformers.Qwen3VLForConditionalGeneration(config)
    if family == "smolvlm":
        vision = {
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 16, "patch_size": 4,
        }  # fmt: skip
        image = tokenizer.convert_tokens_to_ids("<image>")
        config = transformers.SmolVLMConfig(
            text_config=text | {"model_type": "llama"}, vision_config=vision, scale_factor=2, image_token_id=image,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        return transformers.SmolVLMForConditionalGeneration(config)
    name, own = READING[family]
    config = getattr(transformers, f"{name}Config")(**({"tie_word_embeddings": False} | own | text))
    return getattr(transformers, f"{name}ForCausalLM")(config)


def _processor(family: str, folder: Path) -> None:
    if family == "smolvlm":
        common = HALF | {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}
        parts = (("image", "SmolVLM", {"do_image_splitting": True}), ("video", "SmolVLM", {}))
        (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": 4}))
    else:
        common = HALF | {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2}
        limits = {"shortest_edge": 64, "longest_edge": 32 * 32}
        kind = "Qwen3VL" if family == "qwen3_vl" else "Qwen2VL"
        parts = (("image", "Qwen2VL", {"size": limits}), ("video", kind, {"size": limits}))
    for part, name, more in parts:
        file = folder / ("preprocessor_config.json" if part == "image" else "video_preprocessor_config.json")
        file.write_text(json.dumps(common | more | {f"{part}_processor_type": f"{name}{part.title()}Processor"}))


def tiny_language(folder: Path, family: str, *, seed: int = 0, marks: Sequence[str] = (), **more: Any) -> Path:
    """A directory in transformers layout with an untrained model whose words differ enough to tell models apart.

    ``marks`` are further special tokens, ``more`` options of the decoder's configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kind = "smol" if family == "smolvlm" else "qwen" if family in SEEING else "text"
    tokenizer = build_tokenizer(kind, marks)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _network(family, tokenizer, more)
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1:
                # far from flat: a slip shows in the logits
                torch.nn.init.normal_(parameter, std=0.3 if "embed" in name or "lm_head" in name else 0.15)
            elif "norm" not in name:
                torch.nn.init.normal_(parameter, std=0.1)
    network.generation_config.eos_token_id = tokenizer.eos_token_id
    network.generation_config.pad_token_id = tokenizer.pad_token_id
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if family in SEEING:
        _processor(family, folder)
    return folder


def noise_image(seed: int, width: int = 16, height: int = 16) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def film(seed: int, frames: int = 5, fps: float = 2.0) -> Video:
    return Video(np.random.default_rng(seed).integers(0, 256, (frames, 16, 16, 3), dtype=np.uint8), fps)


def chat(*parts: str | Image.Image | Video) -> tuple[list[dict[str, Any]], Shown]:
    """A user's message of words, images and videos in order; and the media."""
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        else:
            content.append({"type": "video" if isinstance(part, Video) else "image"})
    images = [part for part in parts if isinstance(part, Image.Image)]
    videos = [part for part in parts if isinstance(part, Video)]
    return [{"role": "user", "content": content}], Shown(images, videos)
