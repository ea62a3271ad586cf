"""A Stable Diffusion 3 of 1.5 million weights that draws 32 x 16 grey pixels without a VAE."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from tiny_data import WIDTH
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer

from burnish.diffusion.pipeline.loading import LENGTH

Pipeline: TypeAlias = Any  # a StableDiffusion3Pipeline; diffusers declares no types

LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
WORDS = ("the", "number")
MAX_TOKENS = 8  # start, the, number, three digits, end, and one to spare
WIDTHS = (64, 32)  # of the two text encoders
LAYERS, HEADS, HEAD_WIDTH, PATCH = 4, 3, 32, 4
BLANKS = 0  # tokens in place of the T5 encoder's
SHIFT = 1.0  # of the sampling schedule
# What a pipeline without VAE and T5 lacks: diffusers wants to be told, even though model_index.json says so
ABSENT: dict[str, None] = {"vae": None, "text_encoder_3": None, "tokenizer_3": None}


def clip_tokenizer() -> CLIPTokenizer:
    """CLIP's tokenizer with a vocabulary of our own: it knows two words, and spells the others."""
    tokens = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        left, *rest = [*word[:-1], f"{word[-1]}</w>"]
        for right in rest:
            merges.append((left, right))
            left += right
            if left not in tokens:
                tokens.append(left)
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer: Any = CLIPTokenizer  # its annotation of merges forgets pairs
    return tokenizer(vocab=vocabulary, merges=merges, model_max_length=MAX_TOKENS)


def text_encoder(width: int, *, layers: int, heads: int, vocabulary: int) -> CLIPTextModelWithProjection:
    """One of CLIP's text encoders, untrained; the last two tokens mark start and end."""
    start, end = vocabulary - 2, vocabulary - 1
    config = CLIPTextConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=heads, max_position_embeddings=MAX_TOKENS, projection_dim=width,
        bos_token_id=start, eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    return CLIPTextModelWithProjection(config)


def build_pipeline(seed: int) -> Pipeline:
    """An untrained pipeline; its weights depend on the seed alone."""
    torch.manual_seed(seed)  # modules initialise themselves from the global generator
    tokenizer = clip_tokenizer()
    transformer = SD3Transformer2DModel(
        sample_size=WIDTH, patch_size=PATCH, in_channels=1, out_channels=1, num_layers=LAYERS,
        attention_head_dim=HEAD_WIDTH, num_attention_heads=HEADS, joint_attention_dim=sum(WIDTHS),
        caption_projection_dim=HEADS * HEAD_WIDTH, pooled_projection_dim=sum(WIDTHS),
        pos_embed_max_size=WIDTH // PATCH, qk_norm="rms_norm",
    )  # fmt: skip
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT),
        text_encoder=text_encoder(WIDTHS[0], layers=3, heads=2, vocabulary=len(tokenizer)),
        text_encoder_2=text_encoder(WIDTHS[1], layers=2, heads=1, vocabulary=len(tokenizer)),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        **ABSENT,
    )


def networks(pipeline: Pipeline) -> nn.ModuleList:
    """What is trained, together."""
    return nn.ModuleList([pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2])


def token_ids(pipeline: Pipeline, prompts: Sequence[str]) -> Tensor:
    """What both text encoders read: [prompts, MAX_TOKENS]."""
    padded = pipeline.tokenizer(
        list(prompts), padding="max_length", max_length=MAX_TOKENS, truncation=True, return_tensors="pt"
    )
    ids: Tensor = padded.input_ids
    return ids


def encode(pipeline: Pipeline, ids: Tensor, *, blanks: int) -> tuple[Tensor, Tensor]:
    """What the pipeline's encode_prompt makes of ids, but with gradients: a test compares the two.

    Args:
        pipeline: whose text encoders read.
        ids: [B, MAX_TOKENS].
        blanks: zero tokens that stand for the missing T5 encoder: diffusers' max_sequence_length.
    """
    first = pipeline.text_encoder(ids, output_hidden_states=True)
    second = pipeline.text_encoder_2(ids, output_hidden_states=True)
    tokens = torch.cat([first.hidden_states[-2], second.hidden_states[-2]], dim=-1)
    pooled = torch.cat([first.text_embeds, second.text_embeds], dim=-1)
    return torch.cat([tokens, tokens.new_zeros(len(ids), blanks, tokens.shape[-1])], dim=1), pooled


def save(pipeline: Pipeline, folder: Path) -> None:
    """Write the pipeline in half precision, in the place of what was there."""
    save_half(pipeline, folder, BLANKS)
    for name in ("tokenizer", "tokenizer_2"):
        write_vocabulary(pipeline.tokenizer, folder / name)


def save_half(pipeline: Pipeline, folder: Path, length: int) -> None:
    """Write any pipeline with its networks in half precision, which everyone loads as float32.

    Args:
        pipeline: to write.
        folder: to write into; what is there goes.
        length: prompt tokens that Burnish draws with, where nothing else is said.
    """
    shutil.rmtree(folder, ignore_errors=True)
    parts = {
        name: deepcopy(part).half() if isinstance(part, nn.Module) else part
        for name, part in pipeline.components.items()
        if name not in ("image_encoder", "feature_extractor")
    }
    halved: Pipeline = type(pipeline)(**parts)
    halved.register_to_config(**{LENGTH: length})
    halved.save_pretrained(folder)
    for path in folder.glob("*/config.json"):
        config = json.loads(path.read_text(encoding="utf-8"))
        # transformers loads in the precision that is noted here, diffusers in float32: they have to agree
        precision = {"dtype": "float32"} if path.parent.name.startswith("text_encoder") else {}
        where = config.pop("_name_or_path", None)  # a folder of the machine that made it
        if precision or where is not None:
            path.write_text(json.dumps(config | precision, indent=2) + "\n", encoding="utf-8")
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # written for their owner alone, but meant to be shared


def write_vocabulary(tokenizer: CLIPTokenizer, folder: Path) -> None:
    """Write the two files that transformers 4 reads where transformers 5 has a single one."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]) + "\n", encoding="utf-8")
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")


def load(folder: Path) -> Pipeline:
    """The pipeline as float32, as anyone would load it."""
    pipeline = StableDiffusion3Pipeline.from_pretrained(
        folder, torch_dtype=torch.float32, local_files_only=True, **ABSENT
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
