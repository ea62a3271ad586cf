"""Which parts of a pipeline are trained, and several of them as one module."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from burnish.models.lora import attach
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

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.parameters()).dtype


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
                f"model.networks is {list(chosen)}; name each network that is trained once, of {usual}, or leave it out"
            )
        # diffusers takes its encoders from transformers, and what they make is no velocity
        if encoders := [name for name in chosen if modules[name].__module__.startswith("transformers.")]:
            raise UserError(
                f"model.networks has {encoders[0]!r}, a {modules[encoders[0]].__name__}, which predicts no velocity; "
                f"name {usual}, or leave it out"
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


def attention_layers(network: nn.Module) -> list[str]:
    """Full names of the linear layers in attention modules, which get adapters unless the user names others."""
    inside = [
        name for name, module in network.named_modules()
        if "attn" in name.rpartition(".")[2] or "attention" in type(module).__name__.lower()
    ]  # fmt: skip
    return [
        name for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and any(name == outer or name.startswith(f"{outer}.") for outer in inside)
    ]  # fmt: skip
