"""How a generator's networks run: activation checkpointing by block, attention backends, compiled blocks."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from burnish.models.loading import block_count
from burnish.models.lora import AsInForward
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

log = logging.getLogger(__name__)

TOLERATED = {"float32": 1e-4, "bfloat16": 2e-2}  # largest relative difference of attention
TOKENS, HEADS, WIDTH = 40, 2, 64  # of what is compared: all kernels take heads of 64


def recompute(network: nn.Module, blocks: bool | int) -> None:
    """Activation checkpointing in all blocks of a network, or in the first ones.

    Raises:
        UserError: the network doesn't support it, or has fewer blocks.
    """
    from torch.utils.checkpoint import checkpoint

    own: Any = network
    if not getattr(network, "_supports_gradient_checkpointing", False):
        raise UserError(
            f"model.gradient_checkpointing is {str(blocks).lower()}, but {type(network).__name__} doesn't support it; "
            "set it to false"
        )
    again = partial(checkpoint, use_reentrant=False, context_fn=AsInForward(network))
    if isinstance(blocks, bool):
        own.enable_gradient_checkpointing(again)
        return
    found = _blocks(network)
    if any(hasattr(block, "gradient_checkpointing") for block in found):
        raise UserError(
            f"model.gradient_checkpointing is {blocks}, but {type(network).__name__} recomputes activations inside of "
            "its blocks, all or none; set it to true"
        )
    chosen = set(found[: block_count(blocks, len(found))])

    def some(block: Any, *args: Any) -> Any:
        return again(block, *args) if block in chosen else block(*args)

    own.enable_gradient_checkpointing(some)


def choose_attention(network: nn.Module, backend: str, *, compute: torch.dtype, device: str) -> None:
    """Have a network attend by one of diffusers' backends, after comparing it with PyTorch's own.

    Raises:
        UserError: it is not installed, can't be chosen for this network, has no gradients, or computes something else.
    """
    from diffusers.models.attention_dispatch import attention_backend

    if not any(hasattr(getattr(module, "processor", None), "_attention_backend") for module in network.modules()):
        raise UserError(
            f"model.attention is {backend}, but the attention of {type(network).__name__} calls PyTorch's directly, "
            "and has no choice of backends; leave it out"
        )
    try:
        with attention_backend(backend):  # which leaves other networks of the process as they are
            apart = _apart(backend, compute, device)
            network.set_attention_backend(backend)  # type: ignore[operator]
    except (RuntimeError, ValueError, ImportError, NotImplementedError, AssertionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"model.attention is {backend}, which can't train here: {reason or type(error).__name__}; leave it out"
        ) from error
    tolerated = TOLERATED[str(compute).removeprefix("torch.")]
    if not apart <= tolerated:
        raise UserError(
            f"model.attention is {backend}, but outputs or gradients differ by {apart:.1g} (relative) from those of "
            f"native, and {tolerated:g} is tolerated in {compute}; choose another backend"
        )
    log.warning("model.attention=%s agrees with native to %.1g (relative; outputs and gradients)", backend, apart)


def _apart(backend: str, compute: torch.dtype, device: str) -> float:
    """The largest relative difference of a backend's outputs and gradients from those of PyTorch's own attention."""
    import torch
    from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

    draw = torch.Generator().manual_seed(0)
    drawn = [torch.randn(2, TOKENS, HEADS, WIDTH, generator=draw) for _ in range(4)]
    *given, slope = [one.to(device, compute) for one in drawn]

    def run(name: str) -> list[Tensor]:
        inputs = [one.clone().requires_grad_() for one in given]
        with torch.enable_grad():
            out = dispatch_attention_fn(*inputs, backend=AttentionBackendName(name))
        return [out.detach(), *torch.autograd.grad(out, inputs, slope)]

    pairs = zip(run(backend), run("native"), strict=True)
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)


def compile_blocks(network: nn.Module) -> None:
    """Compile the blocks that a network repeats, each kind once.

    Raises:
        UserError: diffusers names none for this network.
    """
    if not getattr(network, "_repeated_blocks", None):
        raise UserError(
            f"model.compile is true, but diffusers names no repeated blocks of {type(network).__name__}; leave it out"
        )
    network.compile_repeated_blocks()  # type: ignore[operator]


def _blocks(network: nn.Module) -> list[nn.Module]:
    """The modules of a network's lists of blocks, in the order that they run in."""
    from torch.nn import ModuleList

    return [block for child in network.children() if isinstance(child, ModuleList) for block in child]
