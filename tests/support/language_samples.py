"""Made-up responses to prompts, and what transformers itself says about them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from burnish.diffusion.options import ModelOptions
from burnish.language.model.loading import load_language_model
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded
from tests.support.tiny_language import SEEING, chat, film, noise_image, tiny_language
from tests.support.universal import as_documented


@cache
def folder_of(family: str) -> Path:
    import tempfile

    return tiny_language(Path(tempfile.mkdtemp(prefix=f"burnish-{family}-")), family)


def model_at(folder: Path) -> Any:
    return load_language_model(ModelOptions(path=str(folder), device="cpu"))


@cache
def model_of(family: str) -> Any:
    return as_documented(model_at(folder_of(family)), family)


@cache
def theirs_of(family: str) -> Any:
    kind = AutoModelForImageTextToText if family in SEEING else AutoModelForCausalLM
    return kind.from_pretrained(folder_of(family), dtype=torch.float32, attn_implementation="eager").eval()


def prompts_of(family: str) -> dict[str, tuple[Any, ...]]:
    """Prompts with every kind of media that a family knows."""
    prompts: dict[str, tuple[Any, ...]] = {"none": ("How are you?",)}
    if family in SEEING:
        prompts["one"] = ("What is ", noise_image(0), "?")
        prompts["several"] = (noise_image(1), "against", noise_image(2, 24, 40), " and ", noise_image(3))
        prompts["video"] = ("Look: ", film(4), "!")
    return prompts


def encode_all(model: Any, family: str) -> Encoded:
    return Encoded.cat([model.encode(*chat(*parts)) for parts in prompts_of(family).values()])


def responses(
    model: Any, encoded: Encoded, index: Sequence[int], lengths: Sequence[int], *, seed: int = 0
) -> Completion:
    """Random responses of given lengths to the prompts at ``index``."""
    draw, length = torch.Generator().manual_seed(seed), torch.tensor(lengths)
    ids = torch.randint(0, 200, (len(lengths), max(lengths)), generator=draw)
    prompts = Gathered(table=encoded, index=torch.tensor(index))
    return Completion.of_text(prompts, ids * (torch.arange(max(lengths)) < length[:, None]), length, axes=model.axes)


def their_logits(family: str, network: Any, encoded: Encoded, row: int, response: Tensor) -> Tensor:
    """Logits [T, V] that each token of a response to one prompt was predicted with, by transformers' own forward."""
    ids = torch.cat([encoded.ids[row], response])[None]
    features = encoded.features[row]
    kinds = {name: F.pad(own, (0, ids.shape[1] - len(own)))[None] for name, own in features.kinds.items()}
    logits = network(input_ids=ids, attention_mask=torch.ones_like(ids), **features.tensors, **kinds).logits[0]
    return logits[len(encoded.ids[row]) - 1 : -1]


def trimmed(completion: Completion) -> Completion:
    """The same responses without columns that are padding in every row."""
    return completion.padded(int(completion.length.max()))
