"""Which of transformers' attention implementations a language model runs, and whether it computes the same."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from burnish.options.language import LanguageModelOptions
from burnish.options.model import CommonModelOptions
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

log = logging.getLogger(__name__)

REFERENCE = "sdpa"
TOLERATED = {"float32": 1e-3, "bfloat16": 5e-2}  # largest difference of states after all layers, relative
TOKENS = 40  # of what is compared


def attention_of(options: CommonModelOptions) -> str:
    """The attention implementation of a language model; auto where nothing is chosen."""
    return options.attention if isinstance(options, LanguageModelOptions) else "auto"


def choose_attention(network: Any, name: str, *, compute: torch.dtype) -> None:
    """Have a model attend by one of transformers' implementations, after comparing it with PyTorch's own.

    Args:
        network: is changed.
        name: of the implementation.
        compute: precision of the forward pass.

    Raises:
        UserError: it is not installed, this model or device doesn't support it, or it computes something else.
    """
    device = next(network.parameters()).device.type
    try:
        expected = _states(network, REFERENCE, compute, device)
        found = _states(network, name, compute, device)
    except (RuntimeError, ValueError, ImportError, NotImplementedError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"model.attention is {name}, which can't train here: {reason}; leave it out") from error
    apart = max(
        float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, expected, strict=True)
    )
    tolerated = TOLERATED[str(compute).removeprefix("torch.")]
    if not apart <= tolerated:
        raise UserError(
            f"model.attention is {name}, but outputs or gradients differ by {apart:.1g} (relative) from those of "
            f"{REFERENCE}, and {tolerated:g} is tolerated in {compute}; choose another"
        )
    log.warning("model.attention=%s agrees with %s to %.1g (relative; outputs and gradients)", name, REFERENCE, apart)


def _states(network: Any, name: str, compute: torch.dtype, device: str) -> list[Tensor]:
    """The decoder's states for some tokens under an implementation, and their gradient to the embeddings."""
    import torch

    network.set_attn_implementation(name)
    if (own := network.get_decoder().config._attn_implementation) != name:
        raise ValueError(f"{type(network).__name__} attends by {own}, and has no choice")
    known = network.get_input_embeddings().weight
    tokens = torch.arange(TOKENS, device=known.device) * 7 % len(known)
    inputs = torch.nn.functional.embedding(tokens, known)[None].detach().requires_grad_()
    with torch.enable_grad(), torch.autocast(device, compute, enabled=compute != torch.float32):
        mask = torch.ones(1, TOKENS, dtype=torch.long, device=known.device)
        out = network.get_decoder()(inputs_embeds=inputs, attention_mask=mask, use_cache=False).last_hidden_state
    # states have a fixed norm, so that their squares would have no gradient
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
    return [out.detach().float(), torch.autograd.grad(out, inputs, slope)[0].float()]
