"""Weights on their way to vLLM: through shared memory, which goes when its owner does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from burnish.language.vllm.apart.burnish_vllm.shared import mapped, tensors
from burnish.models.adapters import PREFIX, saved_name
from burnish.models.lora import adapter_parameters, plain_name
from burnish.options.model import LoraOptions

ALIGNMENT = 64  # bytes at which tensors begin


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """The plain network's weights by their names in files, adapters folded in beforehand; of tied ones the first.

    Those that ranks have gathered are taken as they are; the network's own ``state_dict`` would give them up.
    """
    found = dict(network.named_parameters(remove_duplicate=False))
    for place, module in network.named_modules():
        for name, value in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                found[f"{place}.{name}" if place else name] = value
    named = {plain_name(key, "policy"): value for key, value in found.items()}
    plain: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, value in named.items():
        place = (value.data_ptr(), value.shape)
        if name is not None and place not in seen:
            seen.add(place)
            plain[name] = value
    written: dict[str, Tensor] = revert_weight_conversion(network, plain)
    return written


def adapter_of(network: nn.Module) -> dict[str, Tensor]:
    """The policy's adapter by the names that peft saves its weights under."""
    return {f"{PREFIX}{saved_name(key)}": value for key, value in adapter_parameters(network, "policy").items()}


def settings_of(lora: LoraOptions, names: Iterable[str]) -> dict[str, Any]:
    """Settings of an adapter, as peft has them; ``names`` are those of its weights."""
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name in names}
    return {
        "peft_type": "LORA", "r": lora.rank, "lora_alpha": 2 * lora.rank if lora.alpha is None else lora.alpha,
        "use_rslora": lora.rslora, "target_modules": sorted(layers), "bias": "none",
    }  # fmt: skip


class SharedWeights:
    """Weights of the last version, in memory that has no name and is mapped by vLLM's processes.

    One copy is all that a publication makes: it rounds, leaves the GPU, and is used again by the next version.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("burnish-weights")
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.message: dict[str, Any] | None = None  # for vLLM: where the weights lie; None before the first version

    def write(
        self, weights: Mapping[str, Tensor], version: int, *, dtype: torch.dtype, settings: Mapping[str, Any] | None
    ) -> None:
        """Put weights in the place of those before, which nobody may be reading.

        Args:
            weights: by their names.
            version: policy updates that they have seen.
            dtype: floating-point numbers are written with this precision.
            settings: of the adapter that they are, as peft has them; None where they are all weights of the network.
        """
        places, size = {}, 0
        for name, value in weights.items():
            kind = dtype if value.is_floating_point() else value.dtype
            places[name] = (str(kind).removeprefix("torch."), tuple(value.shape), size)
            size += -(-value.numel() * kind.itemsize // ALIGNMENT) * ALIGNMENT
        path = f"/proc/{os.getpid()}/fd/{self._file}"  # where processes of this user find it
        if len(self._memory) != size:
            self._memory = mapped(path, size)
        for name, target in tensors(self._memory, places):
            target.copy_(weights[name].detach())
        self.message = {
            "do": "load", "version": version, "path": path, "size": size, "places": places, "adapter": settings,
        }  # fmt: skip

    def close(self) -> None:
        """Free the memory."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._memory = -1, torch.empty(0, dtype=torch.uint8)
