"""What two forward passes over the same responses differ by: ours, and transformers' own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from burnish.diffusion.options import ModelOptions
from burnish.language.decoders import decode
from burnish.language.logprobs import chosen_scores, response_logprobs
from burnish.language.model.loading import load_language_model
from burnish.language.sampling import Sampling
from burnish.models.lora import add_adapters
from burnish.options.model import LoraOptions
from burnish.types.completion import Completion, Encoded
from burnish.utils import random

LAYOUTS = ("padded", "packed", "shared")
LORA = LoraOptions(rank=4, targets=["q_proj", "k_proj", "v_proj", "o_proj"])


def learned(parameters: Iterable[torch.nn.Parameter], step: float = 3e-4) -> None:
    """Move what is trained as the first step of Adam does."""
    draw = torch.Generator().manual_seed(1)
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.data += (step * torch.randn(parameter.shape, generator=draw).sign()).to(parameter)


def load(path: Path, device: Any, *, lora: bool) -> Any:
    """A language model in bfloat16, with adapters on request."""
    options = ModelOptions(path=str(path), device=device, dtype="bfloat16", lora=LORA if lora else None)
    model = load_language_model(options)
    if lora:
        add_adapters(model.network, LORA, ["policy"], seed=0)
    return model


def sampled(model: Any, encoded: Encoded, *, rows: int = 24, longest: int = 16) -> Completion:
    """Responses, equally many to each prompt."""
    index = [row for row in range(len(encoded)) for _ in range(rows // len(encoded))]
    keys = [random.key(0, "rollout", row) for row in range(len(index))]
    return decode(model, model.network, encoded, index, keys, Sampling(max_new_tokens=longest))


def scored(model: Any, completion: Completion) -> list[Tensor]:
    """The trainer's log-probs [B, T] in every layout."""
    with torch.no_grad():
        return [
            response_logprobs(model, model.network, completion, temperature=1.0, layout=layout).logprob.cpu()  # type: ignore[arg-type]
            for layout in LAYOUTS
        ]


def apart(one: Tensor, other: Tensor, mask: Tensor) -> tuple[float, float]:
    """The mean and the largest difference of log-probs."""
    difference = (one - other)[mask].abs()
    return float(difference.mean()), float(difference.max())


def theirs(path: Path, model: Any, completion: Completion, device: str, *, lora: bool) -> tuple[Tensor, Tensor]:
    """Log-probs [B, T] of responses to text by transformers' own forwards: without and with its cache.

    The language head is ours in both, which does not round logits where its weights rest in float32.
    """
    resting = torch.bfloat16 if lora else torch.float32
    kind = AutoModelForImageTextToText if hasattr(model.config, "vision_config") else AutoModelForCausalLM
    network = kind.from_pretrained(path, dtype=resting, attn_implementation="sdpa").eval().to(device)
    found = [torch.zeros(completion.ids.shape) for _ in range(2)]
    head, banned = model.head(network).weight, model.banned.to(device)
    for row, length in enumerate(completion.length.tolist()):
        prompt = completion.prompts.table.ids[int(completion.prompts.index[row])].to(device)
        answer = completion.ids[row, :length].to(device)
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=not lora):
            whole = network.model(input_ids=torch.cat([prompt, answer])[None]).last_hidden_state[
                0, len(prompt) - 1 : -1
            ]
            out = network.model(input_ids=prompt[None], use_cache=True)
            steps = [out.last_hidden_state[0, -1]]
            for token in answer[:-1]:
                out = network.model(input_ids=token.view(1, 1), past_key_values=out.past_key_values, use_cache=True)
                steps.append(out.last_hidden_state[0, -1])
        with torch.no_grad():
            for into, states in zip(found, (whole, torch.stack(steps)), strict=True):
                into[row, :length] = chosen_scores(states, head, answer, temperature=1.0, banned=banned)[0].cpu()
    return found[0], found[1]


def repeated(bench: Any, steps: Any) -> Tensor:
    """Log-probs [M] of recorded denoising steps by the trainer, in its micro-batches."""
    found: Tensor = bench.algorithm.read(
        lambda step, part: step.logprob(part.next_state, "gaussian"), steps, bench.roles
    )
    return found
