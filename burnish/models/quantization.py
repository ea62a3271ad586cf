"""Frozen weights in fewer bits: linear layers of the blocks of a network, by the libraries that have such layers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from burnish.models.targets import ends_with, excluded, is_passed_by
from burnish.options.model import Precision
from burnish.utils.errors import UserError
from burnish.utils.installed import lacking

if TYPE_CHECKING:
    import torch
    from torch import nn

log = logging.getLogger(__name__)

LARGEST = 448.0  # of e4m3
FP8_SINCE = 8, 9  # compute capability of GPUs that multiply in fp8
FP8_MULTIPLE = 16  # of the sizes of weights that GPUs multiply in fp8


def quantize(
    network: nn.Module,
    precision: Precision,
    *,
    compute: torch.dtype,
    device: torch.device | str,
    exclude: Sequence[str] = (),
    in_full: Sequence[str] = (),
    option: str = "model.quantization.weights",
) -> None:
    """Store the linear layers of a network's blocks in fewer bits, on its device.

    A layer is moved and quantised at once, so that the device never holds the network in full precision. What lies
    outside of blocks stays as it is: embeddings, heads, first and last layers are few weights and need their precision.

    Args:
        network: frozen, before it is placed; is changed.
        precision: of its weights.
        compute: precision of its forward pass.
        device: where it goes.
        exclude: suffixes of names of layers that stay as they are, or patterns; one that matches none is an error.
        in_full: suffixes of names of modules that are trained in full, and stay as they are.
        option: that asks for it, for messages.

    Raises:
        UserError: the library is missing, a pattern matches no layer, or nothing is left to quantise.
    """
    if complaint := lacking(precision):
        raise UserError(f"{option}={precision} {complaint}")
    chosen = layers_to_quantize(network, precision, exclude=exclude, in_full=in_full, option=option)
    QUANTIZERS[precision](network, chosen, compute, device)
    log.warning("%s=%s: %d linear layers of %s", option, precision, len(chosen), type(network).__name__)


def layers_to_quantize(
    network: nn.Module,
    precision: Precision,
    *,
    exclude: Sequence[str] = (),
    in_full: Sequence[str] = (),
    option: str = "model.quantization.weights",
) -> dict[str, nn.Linear]:
    """The layers that :func:`quantize` stores in fewer bits, by name; weights need no values for this.

    Raises:
        UserError: a pattern of ``exclude`` matches no layer, or nothing is left to quantise.
    """
    layers = _block_layers(network)
    if not layers:
        raise UserError(
            f"{option} is {precision}, but {type(network).__name__} has no linear layers in a list of blocks that "
            "could be stored so; remove it"
        )
    out = excluded(layers, exclude, f"{option.rpartition('.')[0]}.exclude", "be quantised")
    chosen = {name: layer for name, layer in layers.items() if name not in out and not _is_inside(name, in_full)}
    if not chosen:
        raise UserError(f"{option.rpartition('.')[0]}.exclude leaves no layer to quantise; exclude fewer")
    return chosen


def layers_for_fp8(network: nn.Module) -> dict[str, nn.Linear]:
    """The layers whose products can be in fp8, by name, none of an adapter; weights need no values for this.

    Raises:
        UserError: there are none.
    """
    layers = {
        name: layer for name, layer in _block_layers(network).items()
        if ".lora_" not in name and not layer.in_features % FP8_MULTIPLE and not layer.out_features % FP8_MULTIPLE
    }  # fmt: skip
    if not layers:
        raise UserError(
            f"rollout.fp8 is true, but {type(network).__name__} has no linear layers in a list of blocks whose sizes "
            f"are multiples of {FP8_MULTIPLE}; remove it"
        )
    return layers


def _block_layers(network: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers inside of lists of modules, by name, without those that can't be stored otherwise."""
    from torch.nn import Linear, ModuleList

    lists = [f"{name}." for name, module in network.named_modules() if isinstance(module, ModuleList)]
    # the libraries' own note of layers that need their precision, and whose weights' type is read by the forward pass
    notes = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
    kept = {one for part in network.modules() for note in notes for one in getattr(part, note, None) or ()}
    return {
        name: module for name, module in network.named_modules()
        if type(module) is Linear and name.startswith(tuple(lists)) and not kept & set(name.split("."))
        and not is_passed_by(network, name)
    }  # fmt: skip


def _is_inside(name: str, modules: Sequence[str]) -> bool:
    """Whether a layer is one of some modules, which are given by the ends of their names, or inside of one."""
    outer = name.split(".")
    return any(ends_with(".".join(outer[:end]), modules) for end in range(1, len(outer) + 1))


def _nf4(network: nn.Module, layers: dict[str, nn.Linear], compute: torch.dtype, device: Any) -> None:
    """NormalFloat of 4 bits in blocks of 64 weights, whose scales are quantised too (QLoRA, arXiv:2305.14314)."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for name, layer in layers.items():
        new = Linear4bit(
            layer.in_features, layer.out_features, layer.bias is not None, compute_dtype=compute, quant_type="nf4",
            device="meta",
        )  # fmt: skip
        new.weight = Params4bit(layer.weight.data.to(compute), requires_grad=False, quant_type="nf4", module=new)
        new.bias = layer.bias
        # on some CPUs it packs weights for passes without gradients, which round otherwise than those of training
        new.support_avx512bf16_for_cpu = False
        owner, _, own = name.rpartition(".")
        setattr(network.get_submodule(owner), own, new.train(layer.training).to(device))


def _torchao(config: str, network: nn.Module, layers: dict[str, nn.Linear], compute: torch.dtype, device: Any) -> None:
    """By a class of torchao's configurations."""
    import torchao.quantization as torchao

    for layer in layers.values():
        layer.to(device, compute)
        torchao.quantize_(layer, getattr(torchao, config)(set_inductor_config=False), filter_fn=lambda *_: True)
        layer.requires_grad_(False)


def _fp8_cast(
    network: nn.Module, layers: dict[str, nn.Linear], compute: torch.dtype, device: torch.device | str
) -> None:
    """Storage in fp8 without scales; a layer casts its weight when it runs, and again in the backward pass."""
    from burnish.models.linear import CastLinear

    for name, layer in layers.items():
        if float(layer.weight.abs().max()) > LARGEST:
            raise UserError(
                f"model.quantization: {name} has weights above {LARGEST:g}, the largest number in fp8; add it to "
                "model.quantization.exclude, or take int8"
            )
        owner, _, own = name.rpartition(".")
        setattr(network.get_submodule(owner), own, CastLinear(layer.to(device, compute)))


QUANTIZERS: dict[str, Callable[[nn.Module, dict[str, nn.Linear], torch.dtype, Any], None]] = {
    "nf4": _nf4, "int8": partial(_torchao, "Int8WeightOnlyConfig"),
    "fp8": partial(_torchao, "Float8WeightOnlyConfig"), "fp8_cast": _fp8_cast,
}  # fmt: skip
