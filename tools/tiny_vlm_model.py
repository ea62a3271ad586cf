"""A Qwen2.5-VL of 0.4 million weights, with a tokenizer and a processor of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tiny_vlm_data import FREE, QUESTIONS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from burnish.models.tiny.tokenizers import CHAT

Model: TypeAlias = Any  # transformers declares no types for what its models take and give

VOCABULARY = 384
PATCH, MERGE = 7, 2
END, PAD = "<|im_end|>", "<|endoftext|>"
SPECIAL = (
    PAD, "<|im_start|>", END, "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
TAGS = ("<think>", "</think>", "<answer>", "</answer>")  # tokens, but no special ones: they are part of the text
# Every digit is a token of its own, as Qwen has it
WORDS = Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+")
# What else the tokenizer learns words from, so that its vocabulary is full
ENGLISH = """
You are a helpful assistant. Look at the image and think about the question before you answer it.
Which number is written there, and how many lines does it have? Compare the first image with the second one.
Please write the answer between the tags, and nothing after them. The user wants to know what is shown here.
Both images show a digit. Add them together, take the smaller from the larger, or say that they are the same.
"""


def build_tokenizer(size: int = VOCABULARY) -> Any:
    """Byte-level BPE that can spell anything, and knows the words of the tasks; with fewer tokens it splits more."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL) - len(TAGS), min_frequency=1, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    tokenizer.train_from_iterator([*QUESTIONS.values(), *FREE, "user assistant system", ENGLISH], trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    kind: Any = Qwen2Tokenizer  # its annotation of merges forgets pairs
    made = kind(
        vocab=learned["vocab"], merges=[tuple(pair) for pair in learned["merges"]],
        unk_token=None, bos_token=None, eos_token=END, pad_token=PAD, model_max_length=2048,
    )  # fmt: skip
    made.add_special_tokens({"additional_special_tokens": [token for token in SPECIAL if token not in (END, PAD)]})
    made.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    made.chat_template = CHAT
    assert len(made) == size, f"the vocabulary has {len(made)} tokens, not {size}"
    return made


def build_image_processor() -> Any:
    """An image of 28 x 28 pixels becomes 4 x 4 patches, and those four tokens."""
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH, temporal_patch_size=2, merge_size=MERGE,
        size={"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": 112 * 112},
    )  # fmt: skip


def build_model(seed: int, tokenizer: Any) -> Model:
    """An untrained network; its weights depend on the seed alone."""
    special = dict(zip(SPECIAL, tokenizer.convert_tokens_to_ids(list(SPECIAL)), strict=True))
    torch.manual_seed(seed)  # modules initialise themselves from the global generator
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3,
        "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]},
        "bos_token_id": None, "eos_token_id": special[END], "pad_token_id": special[PAD],
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 48, "intermediate_size": 96, "num_heads": 4, "out_hidden_size": 96,
        "patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": 2, "window_size": 56,
        "fullatt_block_indexes": [1],
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=False,
        image_token_id=special["<|image_pad|>"], video_token_id=special["<|video_pad|>"],
        vision_start_token_id=special["<|vision_start|>"], vision_end_token_id=special["<|vision_end|>"],
    )  # fmt: skip
    return Qwen2_5_VLForConditionalGeneration(config)


def save(model: Model, tokenizer: Any, folder: Path) -> None:
    """Write network (in half precision), tokenizer and processor, in the place of what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    deepcopy(model).half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    pixels = build_image_processor().to_dict()
    kept = ("size", "patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std")
    common = {name: pixels[name] for name in kept} | {"processor_class": "Qwen2_5_VLProcessor"}
    _write(folder / "preprocessor_config.json", common | {"image_processor_type": "Qwen2VLImageProcessor"})
    _write(folder / "video_preprocessor_config.json", common | {"video_processor_type": "Qwen2VLVideoProcessor"})
    for name, changes in _notes(tokenizer):
        path = folder / name
        _write(path, json.loads(path.read_text(encoding="utf-8")) | changes)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # written for their owner alone, but meant to be shared


def _notes(tokenizer: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    # transformers loads in the precision that is noted here
    yield "config.json", {"dtype": "float32"}
    yield "generation_config.json", {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    yield "tokenizer_config.json", {"processor_class": "Qwen2_5_VLProcessor"}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def load(folder: Path) -> tuple[Model, Any, Any]:
    """Network, tokenizer and image processor of a directory, the network as float32."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    tokenizer = Qwen2Tokenizer.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer, Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
