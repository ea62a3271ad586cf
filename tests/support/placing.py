"""Tiny models whose files hold another precision, as Burnish maps them and as the libraries convert them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

from burnish.models.flow.loading import read_index
from burnish.models.flow.pipeline import _networks
from burnish.models.placing import load_mapped, place, rest_frozen
from burnish.models.tiny import ALL, describe_any
from burnish.models.tiny.build import missing
from burnish.models.tiny.language import LANGUAGE
from burnish.options.flow import ModelOptions
from burnish.utils.weights import file_precision, is_quantized, load_network
from tests.support.tiny_run import burnish


class Placed:
    """A tiny model whose files hold a precision."""

    def __init__(self, name: str, folder: Path, held: torch.dtype) -> None:
        if absent := missing(describe_any(name)):
            pytest.skip(f"needs {', '.join(absent)}")
        burnish("tiny", name, folder)
        self.folder = folder
        for file in sorted(folder.rglob("*.safetensors")):
            found = load_file(file)
            held_as = {key: value.to(held) if value.is_floating_point() else value for key, value in found.items()}
            save_file(held_as, file, {"format": "pt"})

    @classmethod
    def names(cls, often: Collection[str]) -> list[Any]:
        """Of all tiny models; the others for thorough runs."""
        every = [*(one.name for one in ALL), *(one.name for one in LANGUAGE)]
        return [pytest.param(one, marks=[] if one in often else [pytest.mark.thorough]) for one in every]

    def _kinds(self) -> Iterator[tuple[Any, Path, dict[str, Any]]]:
        if (self.folder / "model_index.json").exists():
            for name, kind in _networks(read_index(ModelOptions(path=str(self.folder)))[1]).items():
                yield kind, self.folder / name, {}
        else:
            several = type(AutoConfig.from_pretrained(self.folder)) in MODEL_FOR_MULTIMODAL_LM_MAPPING
            kind = AutoModelForMultimodalLM if several else AutoModelForCausalLM
            yield kind, self.folder, {"trust_remote_code": False}

    def mapped(self, dtype: torch.dtype, part: str = "") -> list[nn.Module]:
        return [load_mapped(kind, at, dtype=dtype, **how) for kind, at, how in self._kinds() if at.name in part]

    def both(self, dtype: torch.dtype) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """Tensors of each network as the library converts them, and as they are placed here."""
        for kind, at, how in self._kinds():
            network = load_mapped(kind, at, dtype=dtype, **how)
            place(network, "cpu")
            yield _tensors(load_network(kind, at, dtype=dtype, **how)), _tensors(network)


def at_rest(bench: Any, sample: Callable[[], Any]) -> Any:
    """What is sampled by a model that was loaded to sample alone, whose weights take less."""
    network = bench.roles.model.network
    size = sum(weight.nbytes for weight in network.parameters())
    rest_frozen(network, bench.roles.model.compute)
    place(network, bench.roles.model.device)
    assert sum(weight.nbytes for weight in network.parameters()) < size
    return sample()


def converted(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.named_parameters()}


def precision_of(folder: Path) -> str | None:
    return file_precision(folder)


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """All that a network has, in files or not."""
    found = dict(network.named_parameters(remove_duplicate=False)) | dict(network.named_buffers())
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            listed = value if isinstance(value, list | tuple) else [value]
            found |= {f"{path} {name} {i}": one for i, one in enumerate(listed) if isinstance(one, Tensor)}
    return found


def in_few_bits(module: nn.Module) -> bool:
    """Whether a layer's weight is quantised."""
    return bool(is_quantized(module.weight))
