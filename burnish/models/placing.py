"""Weights between their file and the device: mapped, not read, until they are placed where and as they rest.

What a file holds in another precision than a run wants would be converted as a full network in memory, on every rank.
Here the libraries load it as it is, which maps the file; each weight is noted down with the precision that it rests in,
and becomes that when its network is placed on a device, or a rank takes its share.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.utils.weights import file_precision, from_config, kept_precise, load_network, reads_weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

NOTE = "rests_in"  # attribute of a weight that is converted when it is placed
PRECISIONS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # safetensors' names, and torch's


def load_mapped(kind: Any, folder: Path, *, dtype: torch.dtype, **options: Any) -> Any:
    """``load_network``, but that weights stay in the file's precision until they are placed.

    Args:
        kind: class of a network.
        folder: in its library's layout.
        dtype: that it is to rest in, but for weights that the class keeps in float32.
        options: of ``from_pretrained``.

    Raises:
        UserError: see ``load_network``.
    """
    import torch

    named = PRECISIONS.get(file_precision(folder) or "") if reads_weights() else None
    own: torch.dtype | None = getattr(torch, named) if named else None
    if own is None or own == dtype:
        return load_network(kind, folder, dtype=dtype, **options)
    network = load_network(kind, folder, dtype=own, **options)
    from accelerate import init_empty_weights

    own_dtypes = hasattr(network, "_from_config")
    with torch.random.fork_rng(devices=[]), init_empty_weights():
        if own_dtypes:
            built = type(network)._from_config(copy.deepcopy(network.config), dtype=dtype)
        else:
            built = from_config(type(network), folder, dtype=dtype)
    kept = kept_precise(network, dtype)
    wanted = built.state_dict()
    for name, value in network.state_dict(keep_vars=True).items():
        if value.is_floating_point():
            # transformers leaves what a class makes in a precision of its own; diffusers converts everything
            rest = torch.float32 if kept(name) else wanted[name].dtype if own_dtypes else dtype
            setattr(value, NOTE, rest)
    _take_computed(network, built)
    parts = getattr(network.config, "sub_configs", ())
    for config in (network.config, *(getattr(network.config, name, None) for name in parts)):
        if getattr(config, "dtype", None) == own:
            config.dtype = dtype
    return network


def _take_computed(network: nn.Module, built: nn.Module) -> None:
    """Tensors that are in no file, such as tables of positions, as they are computed in the precision of the run."""
    from torch import Tensor

    for own, other in zip(network.modules(), built.modules(), strict=True):
        for name in own._non_persistent_buffers_set:
            own._buffers[name] = other._buffers[name]
        own.__dict__.update({name: value for name, value in vars(other).items() if isinstance(value, Tensor)})


def resting(weight: Tensor) -> torch.dtype:
    """The precision that a weight rests in when it is placed."""
    return getattr(weight, NOTE, weight.dtype)


def place(module: nn.Module, device: torch.device | str, *, copy: bool = False) -> None:
    """Move a module's weights to a device one after the other, each in the precision that it rests in; ``copy`` gives
    them memory of their own also where they are there already."""
    import torch
    from torch import nn

    placed: dict[int, nn.Parameter] = {}  # tied weights stay tied
    for owner in module.modules():
        for name, weight in owner._parameters.items():
            if weight is None:
                continue
            if not copy and weight.device == torch.device(device) and weight.dtype == resting(weight):
                continue
            if id(weight) not in placed:
                there = weight.detach().to(device, resting(weight), copy=copy)
                placed[id(weight)] = nn.Parameter(there, requires_grad=weight.requires_grad)
            owner._parameters[name] = placed[id(weight)]
        place_buffers(owner, device)


def is_placed(module: nn.Module, device: torch.device) -> bool:
    """Whether all weights are where and as they rest."""
    return all(weight.device == device and weight.dtype == resting(weight) for weight in module.parameters())


def place_buffers(owner: nn.Module, device: torch.device | str) -> None:
    """The same for the buffers of one module."""
    for name, value in owner._buffers.items():
        if value is not None:
            owner._buffers[name] = value.to(device, resting(value))


def twin(network: nn.Module) -> nn.Module:
    """A copy of a network with weights of its own that share the memory of the first one's."""
    from torch import nn

    memo: dict[int, Any] = {}
    for weight in network.parameters():
        memo[id(weight)] = other = nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
        if hasattr(weight, NOTE):
            setattr(other, NOTE, resting(weight))
    return copy.deepcopy(network, memo)


def rest_frozen(network: nn.Module, compute: torch.dtype) -> None:
    """Have weights of a network that is never trained rest in its compute precision, where that moves no bit.

    Those are the float32 weights that autocast casts at every use: of linear layers and of convolutions. Norms, tables
    and embeddings compute in float32, and so does an output head, whose weight is used outside of the forward pass.
    """
    import torch
    from torch import nn

    if compute == torch.float32:
        return
    cast = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    whole: Any = network
    head = whole.get_output_embeddings() if hasattr(whole, "get_output_embeddings") else None
    every = [(module, weight) for module in network.modules() for weight in module.parameters(recurse=False)]
    others = {id(weight) for module, weight in every if not isinstance(module, cast) or module is head}
    for _, weight in every:
        if id(weight) not in others and resting(weight) == torch.float32:
            setattr(weight, NOTE, compute)


@contextmanager
def as_placed(network: nn.Module) -> Iterator[None]:
    """A context in which weights seem to be what they will be when they are placed; their values are zeros."""
    import torch

    noted = [weight for weight in network.parameters() if resting(weight) != weight.dtype]
    held = [weight.data for weight in noted]
    for weight in noted:
        weight.data = torch.zeros((), dtype=resting(weight), device=weight.device).expand(weight.shape)
    try:
        yield
    finally:
        for weight, value in zip(noted, held, strict=True):
            weight.data = value
