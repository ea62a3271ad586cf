"""Weights on their way to vLLM: through a file in shared memory that has no name and goes when its owner does."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from burnish.checkpoint import tensor_file
from burnish.models.adapters import PREFIX, saved_name
from burnish.models.lora import adapter_parameters, plain_name
from burnish.options.model import LoraOptions

SHARED = Path("/dev/shm")
SPARE = 1.1  # a file needs a little more than its tensors


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


class WeightFile:
    """Weights of one version, written down once and readable as long as this object is open."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        version: int,
        *,
        dtype: torch.dtype,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Write weights down, piece by piece.

        Args:
            weights: by their names.
            version: policy updates that they have seen.
            dtype: floating-point numbers are written with this precision.
            settings: of the adapter that they are, as peft has them; None where they are all weights of the network.
        """
        self.version, self.settings = version, settings
        pieces = {
            name: tensor_file.Piece.full(value, dtype if value.is_floating_point() else value.dtype)
            for name, value in weights.items()
        }
        size = sum(piece.tensor.numel() * piece.dtype.itemsize for piece in pieces.values())
        roomy = SHARED.is_dir() and shutil.disk_usage(SHARED).free > SPARE * size
        with tempfile.TemporaryDirectory(prefix="burnish-weights-", dir=SHARED if roomy else None) as folder:
            path = Path(folder) / "weights.safetensors"
            self.digest: str = tensor_file.write(path, pieces)["sha256"]  # of what is written, while it is
            self._file = path.open("rb")

    @property
    def path(self) -> str:
        """Where other processes of this user find the file, which has no name any more."""
        return f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def close(self) -> None:
        """Free the memory."""
        self._file.close()
