"""LoRA adapters: several on the same weights, switched, and merged while sampling."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from burnish.models.placing import as_placed, place
from burnish.models.targets import chosen, is_transposed, linear_kinds, saved_in_full
from burnish.options.model import LoraOptions
from burnish.utils.errors import UserError
from burnish.utils.weights import is_quantized

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from peft import LoraConfig
    from peft.tuners.lora import LoraLayer
    from torch import Tensor, nn

log = logging.getLogger(__name__)

KINDS = ("lora_A", "lora_B", "lora_magnitude_vector", "modules_to_save")  # where weights of adapters lie in a layer


def add_adapters(
    network: nn.Module, options: LoraOptions, names: Sequence[str], *, seed: int, default_targets: Sequence[str] = ()
) -> None:
    """Add adapters with equal initial weights, whose contribution is 0; only the first one is trained.

    Args:
        network: is changed.
        options: rank, scale and target layers.
        names: of the adapters.
        seed: of their initial weights.
        default_targets: the family's, used if ``options`` name none; those that the network lacks are ignored.

    Raises:
        UserError: a target matches no layer.
    """
    import torch
    from peft import LoraConfig

    linear = {name: module for name, module in network.named_modules() if isinstance(module, linear_kinds())}
    saved = saved_in_full(network, options)
    if options.targets is None:
        default_targets = _not_renamed(network, default_targets)
    targets, adapted = chosen(linear, options, default_targets, saved)
    alpha = options.alpha if options.alpha is not None else 2 * options.rank
    config = LoraConfig(
        r=options.rank, lora_alpha=alpha, target_modules=targets, use_rslora=options.rslora,  # type: ignore[arg-type]
        use_dora=options.dora, modules_to_save=saved or None,
        fan_in_fan_out=all(is_transposed(linear[name]) for name in adapted),
    )  # fmt: skip
    if options.dora or saved:  # these begin with values of the weights
        place(network, next(network.parameters()).device)
    for name in names:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), as_placed(network):
            # several are intended, and nothing is merged
            warnings.filterwarnings("ignore", "Already found a `peft_config`|TorchaoLoraLinear was instantiated")
            torch.manual_seed(seed)
            attach(network, config, name)
    _check_adapted(network, adapted, saved)
    for name in names:
        for parameter in adapter_parameters(network, name).values():
            # half precision would lose small steps; the frozen weights may stay in it
            parameter.data = parameter.data.float()
        _draw_again(network, name, seed)
    for layer in carriers(network):
        layer.set_adapter(names[0])  # whose weights alone are trained


def _draw_again(network: nn.Module, name: str, seed: int) -> None:
    """Draw the initial weights of adapters on layers that are stored in fp8, to which peft has rounded them."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    for layer in lora_layers(network):
        base: Any = layer.get_base_layer()
        if base.weight.is_floating_point() and base.weight.dtype.itemsize == 1:
            first: Any = layer.lora_A[name].weight
            first.data = torch.nn.init.kaiming_uniform_(torch.empty(first.shape), a=5**0.5, generator=draw).to(
                first.device
            )  # as peft does


def _not_renamed(network: nn.Module, targets: Sequence[str]) -> Sequence[str]:
    """The targets that peft takes as they are.

    In mixtures that transformers 5 stores with joined experts, it reads the names of dense layers, gate_proj for one,
    as those of the experts that an older version had; also when somebody loads the adapter. Then it may lose more.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    config = LoraConfig(target_modules=list(targets))
    convert_peft_config_for_transformers(config, network, None)
    left = [target for target in targets if target in (config.target_modules or ())]
    lost = set(_lost(network, left))
    left = [target for target in left if target not in lost]
    if len(left) < len(targets):
        first = next(target for target in targets if target not in left)
        log.info(
            "model.lora.targets: no adapters for %d layers such as %s, whose names peft takes for those of others",
            len(targets) - len(left), first,
        )  # fmt: skip
    return left


def _lost(network: nn.Module, names: Sequence[str]) -> list[str]:
    """Layers whose adapters peft would look for under other names when it loads them, so that they stay as drawn."""
    import torch
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_adapter_state_dict_for_transformers

    keys = {f"base_model.model.{name}.lora_A.weight": name for name in names}
    found = convert_peft_adapter_state_dict_for_transformers(
        network, LoraConfig(), {key: torch.zeros(1, 1) for key in keys}
    )
    return [name for key, name in keys.items() if key not in found]


def _check_adapted(network: nn.Module, adapted: Sequence[str], saved: Sequence[str]) -> None:
    """Refuse what peft makes of names in its own way: adapters of other layers than those that were meant."""
    names = {module: name for name, module in network.named_modules()}
    ours = {names[layer] for layer in carriers(network)}
    if odd := sorted(ours ^ {*adapted, *saved}):
        raise UserError(
            f"peft adapts {odd[0]} otherwise than model.lora.targets and model.lora.modules_to_save say, and "
            f"{len(odd) - 1} more layers; give full names of layers, such as {adapted[0]}"
        )
    if lost := _lost(network, adapted):
        raise UserError(
            f"peft would load the adapter of {lost[0]} under another name, which loses it, and of {len(lost) - 1} more "
            f"layers; remove them: model.lora.exclude='[\"*.{lost[0].split('.')[-2]}.*\"]'"
        )


def attach(network: nn.Module, config: LoraConfig, name: str) -> None:
    """Give a network an adapter, which is active; also one whose class in diffusers knows of none."""
    from peft import inject_adapter_in_model

    if hasattr(network, "add_adapter"):
        network.add_adapter(config, adapter_name=name)  # type: ignore[operator]
    else:
        inject_adapter_in_model(config, network, adapter_name=name)


def lora_layers(network: nn.Module) -> list[LoraLayer]:
    """The layers that have adapters."""
    from peft.tuners.lora import LoraLayer

    return [module for module in network.modules() if isinstance(module, LoraLayer)]


def carriers(network: nn.Module) -> list[Any]:
    """All modules with weights of adapters: layers that are adapted, and modules that are trained in full."""
    from peft.utils.other import ModulesToSaveWrapper

    saved = [module for module in network.modules() if isinstance(module, ModulesToSaveWrapper)]
    return [*lora_layers(network), *saved]


def adapter_parameters(network: nn.Module, name: str) -> dict[str, nn.Parameter]:
    """The weights of an adapter by their names in the network, without its own."""
    marks = {f".{kind}.{name}.": f".{kind}." for kind in KINDS}
    every = network.named_parameters()
    return {key.replace(mark, plain): one for key, one in every for mark, plain in marks.items() if mark in key}


def plain_name(key: str, name: str) -> str | None:
    """The name that a weight has in the network without adapters, with one of them merged; None if it has none."""
    if ".lora_" in key or ".original_module." in key:
        return None
    if ".modules_to_save." in key:
        mark = f".modules_to_save.{name}."
        return key.replace(mark, ".") if mark in key else None
    return key.replace(".base_layer.", ".")


def switch_adapter(layers: Sequence[Any], name: str | None) -> None:
    """Activate another adapter, or none; the same parameters stay trainable."""
    for layer in layers:  # peft's own functions also choose what is trained, which takes 10 ms for FLUX's 266 layers
        layer._disable_adapters = name is None
        if name is not None:
            layer._active_adapter = [name]


class AsInForward:
    """Context function of ``torch.utils.checkpoint``: computes again with the adapter of the forward pass.

    By the time of the backward pass, another adapter may be active: losses compare several of them.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    @cached_property
    def layers(self) -> list[Any]:
        """Those with adapters, once it has some."""
        return carriers(self.network)

    def __call__(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), self._again(active_adapter(self.layers))

    @contextmanager
    def _again(self, name: str | None) -> Iterator[None]:
        now = active_adapter(self.layers)
        if now == name:  # as nearly always: each block would set all layers of the network twice
            yield
            return
        switch_adapter(self.layers, name)
        try:
            yield
        finally:
            switch_adapter(self.layers, now)


def active_adapter(layers: Sequence[Any]) -> str | None:
    """The adapter that is active in these layers; None where none is, or where there are no layers."""
    first: Any = next(iter(layers), None)
    return None if first is None or first.disable_adapters else first.active_adapters[0]


def merging_rounds(network: nn.Module) -> bool:
    """Whether adapted weights are stored in less than float32, so that merging would round off most of an adapter.

    bfloat16 has 8 significant bits: changes below 1/256 of a weight are lost.
    """
    import torch

    bases: list[Any] = [layer.get_base_layer() for layer in lora_layers(network)]
    return any(base.weight.dtype != torch.float32 or is_quantized(base.weight) for base in bases)


@contextmanager
def merged(network: nn.Module, name: str) -> Iterator[None]:
    """A context in which an adapter is merged into the weights.

    The original weights are restored from a copy, not by subtraction, so that nothing drifts.
    """
    from torch.nn import Parameter

    original = []
    adapted = lora_layers(network)
    in_full = [(layer, layer.active_adapters[0]) for layer in carriers(network)[len(adapted) :]]
    switch_adapter([layer for layer, _ in in_full], name)
    for layer in adapted:
        base: Any = layer.get_base_layer()
        original.append((layer, base, base.weight))
        # another parameter, as some layers share theirs with others, which have adapters of their own (Zamba)
        base.weight = Parameter(_sum(layer, name).to(base.weight.dtype), requires_grad=False)
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer, base, weight in original:
            base.weight = weight
            layer._disable_adapters = False
        for module, before in in_full:
            switch_adapter([module], before)


def adapter_state(network: nn.Module, name: str) -> tuple[dict[str, Tensor], dict[str, object]]:
    """The weights of an adapter under peft's names, and its configuration."""
    from peft.utils import get_peft_model_state_dict

    config: Any = network.peft_config[name]  # type: ignore[index]
    metadata = {key: sorted(v) if isinstance(v, set) else v for key, v in config.to_dict().items()}
    return get_peft_model_state_dict(network, adapter_name=name), metadata


def save_for_peft(network: nn.Module, folder: Path, name: str) -> None:
    """Write an adapter as peft's ``from_pretrained`` reads it.

    Args:
        network: with adapters.
        folder: is made where there is none.
        name: of the adapter.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights, metadata = adapter_state(network, name)
    marked = {f"base_model.model.{key}": value.contiguous() for key, value in weights.items()}
    save_file(marked, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(metadata, indent=2, default=str) + "\n")


def merged_state(network: nn.Module, name: str, *, dtype: torch.dtype | None = None) -> tuple[dict[str, Tensor], float]:
    """The weights of the plain network with an adapter merged, and the rounding error.

    Args:
        network: with adapters.
        name: of the adapter.
        dtype: of all weights; None keeps each weight's own.

    Returns:
        Weights by name, and the relative rounding error of the adapter: the norm of the rounding errors in the adapted
        weights over the norm of its contribution to them.

    Raises:
        UserError: an adapted layer shares its weight with another, so that there is no one weight to merge it into.
    """
    _refuse_shared(network)
    lost = learned = 0.0
    weights: dict[str, Tensor] = {}
    for module, layer in network.named_modules():
        if hasattr(layer, "lora_A"):
            weight = layer.get_base_layer().weight
            exact = _sum(layer, name)
            weights[f"{module}.base_layer.weight"] = rounded = exact.to(dtype or weight.dtype)
            lost += float((rounded.float() - exact).square().sum())
            learned += float((exact - weight.float()).square().sum())
    names = {key: plain_name(key, name) for key in network.state_dict()}
    rest = {key: value for key, value in network.state_dict().items() if key not in weights and names[key] is not None}
    weights |= {key: value.clone() for key, value in in_precision(rest, dtype).items()}
    named = {str(names[key]): value for key, value in weights.items()}
    return named, (lost / learned) ** 0.5 if learned else 0.0


def _refuse_shared(network: nn.Module) -> None:
    first: dict[int, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if other != name and any(".base_layer." in one for one in (other, name)):
            layers = " and ".join(one.replace(".base_layer.", ".") for one in (other, name))
            raise UserError(
                f"the adapter can't be merged: {layers} are one weight, and an adapter adds to each of them something "
                "else; export with --format lora"
            )


def in_precision(weights: dict[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Weights with floating-point tensors converted to a dtype; None keeps each tensor's own."""
    return {key: value.detach().to(dtype if value.is_floating_point() else None) for key, value in weights.items()}


def _sum(layer: Any, name: str) -> Tensor:
    """A weight in float32 with its adapter merged."""
    weight: Tensor = layer.get_base_layer().weight.detach()
    delta: Tensor = layer.get_delta_weight(name).detach()
    total = weight.float() + delta
    if name in layer.lora_magnitude_vector:  # DoRA: rows have lengths that are learned
        length: Tensor = layer.lora_magnitude_vector[name].weight.detach()
        axis = 0 if is_transposed(layer.get_base_layer()) else 1
        total = total * (length / total.norm(dim=axis)).unsqueeze(axis)
    return total
