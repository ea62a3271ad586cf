"""Tiny models with attention heads of 32 numbers: vLLM has no kernels for narrower ones."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from burnish.language.model import LanguageModel
from burnish.models.language.loading import load_language_model
from burnish.options.language import LanguageModelOptions
from burnish.types.media import Media
from burnish.types.prompt import Message, Part, Prompt
from tests.support.tiny_language import SEEING, film, picture, tiny_language

HIDDEN = 64
TEXT = {
    "hidden_size": HIDDEN, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "num_hidden_layers": 2, "layer_types": None,
}  # fmt: skip
VISION = {
    "qwen2_vl": {"embed_dim": 64, "hidden_size": HIDDEN},
    "qwen2_5_vl": {"hidden_size": 64, "out_hidden_size": HIDDEN},
    "qwen3_vl": {"hidden_size": 64, "out_hidden_size": HIDDEN},
    "smolvlm": {"hidden_size": 64},
}


def wide(folder: Path, family: str, *, tied: bool | None = None) -> Path:
    """A directory as ``tiny_language`` makes it, with wider attention heads and weights to match."""
    tiny_language(folder, family)
    file = folder / "config.json"
    config: dict[str, Any] = json.loads(file.read_text())
    text = config.get("text_config", config)
    text |= {name: value for name, value in TEXT.items() if name in text or name in ("head_dim",)}
    if text.get("layer_types", 1) is None:
        del text["layer_types"]
    if "mrope_section" in (text.get("rope_parameters") or {}):
        text["rope_parameters"]["mrope_section"] = [6, 5, 5]
        text["rope_parameters"]["mrope_interleaved"] = family == "qwen3_vl"  # as real ones say; only vLLM asks
    if family in SEEING:
        config["vision_config"] |= VISION[family]
    if tied is not None:
        config["tie_word_embeddings"] = text["tie_word_embeddings"] = tied
    file.write_text(json.dumps(config))
    kind = AutoModelForImageTextToText if family in SEEING else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = kind.from_config(AutoConfig.from_pretrained(folder))
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3 if "embed" in name or "lm_head" in name else 0.1)
            elif "norm" not in name:
                torch.nn.init.normal_(parameter, std=0.1)
    network.generation_config.eos_token_id = text["eos_token_id"]
    network.save_pretrained(folder)
    return folder


class Roles:
    """A network that is sampled from."""

    def __init__(self, path: Path) -> None:
        self.model: LanguageModel = load_language_model(LanguageModelOptions(path=str(path), device="cpu"))

    @contextmanager
    def sampling(self, *, merge: bool | None = None) -> Iterator[torch.nn.Module]:
        with torch.no_grad():
            yield self.model.network


def image(seed: int, width: int = 16, height: int = 16) -> Media:
    buffer = io.BytesIO()
    picture(seed, width, height).save(buffer, format="PNG")
    return Media.encoded(buffer.getvalue())


def video(seed: int) -> Media:
    shown = film(seed)
    return Media.movie([Media.array(frame) for frame in shown.frames], shown.fps)


def prompt(*parts: str | Media) -> Prompt:
    """What one user says, with images and videos between the words."""
    said = tuple(Part("text", part) if isinstance(part, str) else Part(part.kind) for part in parts)
    media = [part for part in parts if isinstance(part, Media)]
    return Prompt(
        text="".join(part for part in parts if isinstance(part, str)),
        messages=(Message("user", said),),
        images=tuple(one for one in media if one.kind == "image"),
        videos=tuple(one for one in media if one.kind == "video"),
    )
