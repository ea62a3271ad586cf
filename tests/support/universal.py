"""Tiny models of any class, and what their own forwards say."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish.diffusion.options import ModelOptions
from burnish.language.model.loading import load_language_model
from burnish.models.tiny import LANGUAGE
from burnish.models.tiny.language import write
from burnish.types.completion import Completion

TINY = {tiny.name: tiny for tiny in LANGUAGE}


@cache
def universal_folder(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"burnish-{name}-"))
    write(TINY[name], folder, seed=0)
    return folder


def load_universal(folder: Path, **options: Any) -> Any:
    return load_language_model(ModelOptions(path=str(folder), device="cpu", **options))


@cache
def universal_model(name: str) -> Any:
    return load_universal(universal_folder(name))


def own_logprobs(model: Any, completion: Completion, temperature: float, *, response_kind: int = 0) -> Tensor:
    """Log-probs [B, T] by the class's own forward, one response at a time, from what its processor returned."""
    found = torch.zeros(completion.ids.shape)
    prompts = completion.prompts.table
    for row, length in enumerate(completion.length.tolist()):
        prompt, own = int(completion.prompts.index[row]), completion.ids[row, :length]
        features, ids = prompts.features[prompt], torch.cat([prompts.ids[prompt], own])[None]
        inputs = dict(features.tensors) | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for kind, value in features.kinds.items():
            inputs[kind] = torch.cat([value, torch.full((length,), response_kind)])[None]
        accepted = model.forwards.accepted
        with torch.no_grad():
            out = model.network(**{name: value for name, value in inputs.items() if name in accepted})
        logits = out.logits[0, prompts.lengths[prompt] - 1 : -1].float() / temperature
        logits[:, model.banned] = -torch.inf
        found[row, :length] = logits.log_softmax(-1).gather(1, own[:, None])[:, 0]
    return found
