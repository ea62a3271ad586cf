"""The networks of a pipeline that are trained: which they are, and how they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from diffusers.configuration_utils import FrozenDict
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from burnish.diffusion.options import ModelOptions
from burnish.models.loading import block_count, compare_attention
from burnish.models.lora import AsInForward, attach
from burnish.models.targets import ends_with
from burnish.utils.errors import UserError

HOMES = ("diffusers.models.transformers", "diffusers.models.unets")
AIDES = ("controlnet", "adapter", "vocoder", "connector", "upsampler", "projection")  # in names of frozen helpers


class Networks(nn.ModuleDict):
    """Several networks, each of which takes some of the noise levels, trained together."""

    def add_adapter(self, config: Any, adapter_name: str) -> None:
        """An adapter for each network; its targets are those of the configuration that it has."""
        for name, network in self.items():
            full = {target.removeprefix(f"{name}.") for target in config.target_modules}
            own = [
                target for target in full if any(ends_with(module, [target]) for module, _ in network.named_modules())
            ]
            attach(network, dataclasses.replace(config, target_modules=own), adapter_name)


class PixelSpace(nn.Module):
    """Encodes and decodes to the same values, in [-1, 1]."""

    config = FrozenDict({"scaling_factor": 1.0, "shift_factor": 0.0, "block_out_channels": (1,), "latent_channels": 1})
    dtype = torch.float32

    def encode(self, pixels: Tensor, return_dict: bool = True) -> Any:
        """Pixels [B, C, H, W] as they are."""
        return SimpleNamespace(latent=pixels)

    def decode(self, latents: Tensor, return_dict: bool = True, generator: None = None) -> Any:
        """Latents [B, C, H, W] as they are."""
        return SimpleNamespace(sample=latents) if return_dict else (latents,)


def by_name(network: nn.Module, names: Sequence[str]) -> Mapping[str, nn.Module]:
    """The networks that one module holds."""
    return dict(network.items()) if isinstance(network, Networks) else {names[0]: network}


def together(networks: Mapping[str, nn.Module]) -> nn.Module:
    """Networks as one module; a single one as it is."""
    return Networks(networks) if len(networks) > 1 else next(iter(networks.values()))


def denoisers(parts: Mapping[str, Any], chosen: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the parts that predict velocities.

    They are models of diffusers' folders of transformers and UNets; else those that are no autoencoder and no helper.

    Args:
        parts: of the pipeline, or their classes.
        chosen: model.networks, or None.

    Raises:
        UserError: a chosen part isn't there or predicts nothing, or none was found.
    """
    from diffusers.models.modeling_utils import ModelMixin

    kinds = {name: part if isinstance(part, type) else type(part) for name, part in parts.items()}
    modules = {name: kind for name, kind in kinds.items() if issubclass(kind, torch.nn.Module)}
    if chosen is not None:
        if absent := [name for name in chosen if name not in modules]:
            raise UserError(
                f"model.networks has {absent[0]!r}, which the pipeline hasn't; its networks are {', '.join(modules)}"
            )
        usual = ", ".join(denoisers(parts, None))
        if not chosen or len(set(chosen)) < len(chosen):
            raise UserError(
                f"model.networks is {list(chosen)}; name each network that is trained once, of {usual}, or remove it"
            )
        if len(writing := writers(parts, chosen)) > 1:
            raise UserError(f"model.networks has {' and '.join(writing)}, which both write tokens; choose one of them")
        # diffusers takes its encoders from transformers, and what they make is no velocity
        encoders = [name for name in chosen if modules[name].__module__.startswith("transformers.")]
        if encoders := [name for name in encoders if name not in writing]:
            raise UserError(
                f"model.networks has {encoders[0]!r}, a {modules[encoders[0]].__name__}, which predicts no velocity; "
                f"name {usual}, or remove it"
            )
        return tuple(chosen)
    models = {
        name: kind for name, kind in modules.items()
        if issubclass(kind, ModelMixin) and not hasattr(kind, "decode") and not any(aide in name for aide in AIDES)
    }  # fmt: skip
    found = [name for name, kind in models.items() if kind.__module__.startswith(HOMES)] or list(models)
    if not found:
        raise UserError(
            f"the pipeline has no network that predicts velocities among {', '.join(modules) or 'its parts'}; give a "
            "pipeline that has one, or name it in model.networks"
        )
    return tuple(found)


def writers(parts: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Those of some parts, or of their classes, that write tokens."""
    return [name for name in names if hasattr(parts[name], "generate")]


TOLERATED = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # largest relative difference


class ImageQueries:
    """An attention processor of diffusers for blocks whose text output is dropped: image queries only.

    Without the text queries, image and gradients are the same, for less work: more so with few blocks, and with text
    long against the image.
    """

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, attention_mask: None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend from image tokens [B, I, D] to image and text tokens [B, T, D]; the text is returned unchanged."""
        assert attention_mask is None, "joint attention attends to everything"

        def split(x: Tensor, norm: nn.Module | None = None) -> Tensor:
            x = x.unflatten(-1, (attn.heads, -1)).transpose(1, 2)
            return x if norm is None else norm(x)

        query = split(attn.to_q(hidden_states), attn.norm_q)
        key = split(attn.to_k(hidden_states), attn.norm_k)
        text_key = split(attn.add_k_proj(encoder_hidden_states), attn.norm_added_k)
        value, text_value = split(attn.to_v(hidden_states)), split(attn.add_v_proj(encoder_hidden_states))
        attended = scaled_dot_product_attention(
            query, torch.cat([key, text_key], dim=2), torch.cat([value, text_value], dim=2)
        )
        joined = attended.transpose(1, 2).flatten(2).to(query.dtype)
        for layer in attn.to_out:
            joined = layer(joined)
        return joined, encoder_hidden_states


def leave_out_unread_text(network: nn.Module) -> None:
    """Use the shorter attention in every block that drops its text output, if it gives the same there."""
    from diffusers.models.attention_processor import JointAttnProcessor2_0

    for block in network.modules():
        attn: Any = getattr(block, "attn", None)
        if (
            getattr(block, "context_pre_only", False)
            and type(getattr(attn, "processor", None)) is JointAttnProcessor2_0
            and _same(attn, short := ImageQueries())
        ):
            attn.set_processor(short)


def _same(attn: Any, other: Any) -> bool:
    """Whether the attention of a block gives the same for the image by its processor as by another one."""
    weight = attn.to_q.weight
    if weight.is_meta:
        return True
    draw = torch.Generator().manual_seed(0)
    image, text = (torch.randn(1, count, attn.to_q.in_features, generator=draw).to(weight) for count in (4, 3))
    with torch.no_grad():
        short, full = (run(attn, image, text)[0] for run in (other, attn.processor))
    return float((short - full).abs().max()) <= TOLERATED.get(weight.dtype, 0) * float(full.abs().max())


@contextmanager
def attending(network: Any, processors: Mapping[str, Any]) -> Iterator[None]:
    """Have modules attend by other processors, as the third branch of perturbed-attention guidance does: 2403.17377.

    Args:
        network: with these modules; any part of a pipeline where there are none.
        processors: by the names of the modules.
    """
    if not processors:
        yield
        return
    own = {module: module.processor for module in map(network.get_submodule, processors)}
    try:
        for module, processor in zip(own, processors.values(), strict=True):
            module.processor = processor
        network.attended = processors
        yield
    finally:
        network.attended = {}
        for module, processor in own.items():
            module.processor = processor


class AsAttended(AsInForward):
    """Computes again with the attention processors of the forward pass, too."""

    def __call__(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        own, again = super().__call__()
        return own, self._attending(again, vars(self.network).get("attended", {}))

    @contextmanager
    def _attending(self, again: AbstractContextManager[None], processors: Mapping[str, Any]) -> Iterator[None]:
        with again, attending(self.network, processors):
            yield


BACKENDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # largest relative difference of their attention
COMPARED = 40, 2, 64  # tokens, heads and width of what is compared: all kernels take heads of 64


def recompute(network: nn.Module, blocks: bool | int) -> None:
    """Activation checkpointing in all blocks of a network, or in the first ones.

    Raises:
        UserError: the network doesn't support it, or has fewer blocks.
    """
    own: Any = network
    if not getattr(network, "_supports_gradient_checkpointing", False):
        raise UserError(
            f"model.gradient_checkpointing is {str(blocks).lower()}, but {type(network).__name__} doesn't support it; "
            "set it to false"
        )
    again = partial(checkpoint, use_reentrant=False, context_fn=AsAttended(network))
    if isinstance(blocks, bool):
        own.enable_gradient_checkpointing(again)
        return
    found = blocks_of(network)
    if any(hasattr(block, "gradient_checkpointing") for block in found):
        raise UserError(
            f"model.gradient_checkpointing is {blocks}, but {type(network).__name__} recomputes activations inside of "
            "its blocks, all or none; set it to true"
        )
    chosen = set(found[: block_count(blocks, len(found))])

    def some(block: Any, *args: Any) -> Any:
        return again(block, *args) if block in chosen else block(*args)

    own.enable_gradient_checkpointing(some)


def check_attention_and_compile(network: nn.Module, options: ModelOptions) -> None:
    """Refuse a backend of attention, or compiled blocks, of a network that has none; weights need no values for this.

    Raises:
        UserError: naming the option.
    """
    parts = [getattr(module, "processor", None) for module in network.modules()]
    if options.attention != "auto" and not any(hasattr(part, "_attention_backend") for part in parts):
        raise UserError(
            f"model.attention is {options.attention}, but the attention of {type(network).__name__} calls PyTorch's "
            "directly, and has no choice of backends; remove it"
        )
    if options.compile and not getattr(network, "_repeated_blocks", None):
        raise UserError(
            f"model.compile is true, but diffusers names no repeated blocks of {type(network).__name__}; remove it"
        )


def choose_attention(network: nn.Module, backend: str, *, compute: torch.dtype, device: str) -> None:
    """Have a network attend by one of diffusers' backends, after comparing it with PyTorch's own.

    Raises:
        UserError: it is not installed, has no gradients, or computes something else.
    """
    from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend, dispatch_attention_fn

    draw = torch.Generator().manual_seed(0)
    drawn = [torch.randn(2, *COMPARED, generator=draw) for _ in range(4)]
    *given, slope = [one.to(device, compute) for one in drawn]

    def run(name: str) -> list[Tensor]:
        inputs = [one.clone().requires_grad_() for one in given]
        with attention_backend(name), torch.enable_grad():  # which leaves other networks of the process as they are
            if name == backend:
                network.set_attention_backend(backend)  # type: ignore[operator]
            out = dispatch_attention_fn(*inputs, backend=AttentionBackendName(name))
        return [out.detach(), *torch.autograd.grad(out, inputs, slope)]

    compare_attention(backend, "native", run, BACKENDS[compute], compute)


VARIANTS = 64  # of a block


def compile_blocks(network: nn.Module) -> None:
    """Compile the blocks that a network repeats, each kind once."""
    # by one row or more, the adapter, whether it is cached in compute precision, and gradients; after 8 of them torch
    # would run a block as it is
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VARIANTS)
    network.compile_repeated_blocks()  # type: ignore[operator]


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """The modules of a network's lists of blocks, in the order that they run in.

    Of what writes tokens those of its decoder: not every forward runs a vision tower.
    """
    own = network.get_decoder() if hasattr(network, "generate") else network  # type: ignore[operator]
    return [block for child in own.children() if isinstance(child, nn.ModuleList) for block in child]
