"""Low-rank adapters: several on the same weights, switched, copied, and folded in while sampling."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from burnish.options import LoraOptions
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import torch
    from peft.tuners.lora import LoraLayer
    from torch import Tensor, nn

TOO_LARGE = 16  # times the weights of the adapted layers that adapters have at most


def add_adapters(
    network: nn.Module, options: LoraOptions, names: Sequence[str], *, seed: int, default_targets: Sequence[str] = ()
) -> None:
    """Give a network adapters that start equal and change nothing yet; only the first one is trained.

    Args:
        network: where they go.
        options: rank, scale and target layers of each.
        names: what they are called.
        seed: of their start.
        default_targets: the family's; where ``options`` name no targets, those of them that the network has.

    Raises:
        UserError: a target matches no layer.
    """
    import torch
    from peft import LoraConfig

    linear = {name: module for name, module in network.named_modules() if isinstance(module, torch.nn.Linear)}
    modules = list(linear)

    def matches(target: str) -> bool:
        return any(_ends(name, [target]) for name in modules)

    targets = [target for target in default_targets if matches(target)] if options.targets is None else options.targets
    if not targets:
        raise UserError(f"model.lora.targets names no layer; name some, such as {', '.join(modules[:3])}")
    for target in targets:
        if not matches(target):
            raise UserError(
                f"model.lora.targets has {target!r}, which is the end of no linear layer's name; "
                f"layers are called like {', '.join(modules[:3])}"
            )
    _check_rank(options.rank, [layer for name, layer in linear.items() if _ends(name, targets)])
    alpha = options.alpha if options.alpha is not None else 2 * options.rank
    config = LoraConfig(r=options.rank, lora_alpha=alpha, target_modules=list(targets))  # type: ignore[arg-type]
    for name in names:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")  # several are meant
            torch.manual_seed(seed)
            network.add_adapter(config, adapter_name=name)  # type: ignore[operator]
    for name, parameter in network.named_parameters():
        if ".lora_" in name:
            # small steps are lost in half precision; the frozen weights below may well rest in it
            parameter.data = parameter.data.float()
    use_adapter(layers(network), names[0])


def _ends(name: str, targets: Sequence[str]) -> bool:
    """Whether a layer's name ends in one of them, at a dot."""
    return any(f".{name}".endswith(f".{target}") for target in targets)


def _check_rank(rank: int, adapted: Sequence[nn.Linear]) -> None:
    """Refuse adapters many times as large as their layers; a little more than a layer's rank is no more than waste."""
    there = sum(layer.in_features * layer.out_features for layer in adapted)
    added = sum(rank * (layer.in_features + layer.out_features) for layer in adapted)
    if added > TOO_LARGE * there:
        widest = max(min(layer.in_features, layer.out_features) for layer in adapted)
        raise UserError(
            f"model.lora.rank is {rank}, whose adapters would be {added / there:.3g} times as large as the layers "
            f"that they adapt; a rank above {widest} adds nothing here: lower it, or train all weights with "
            "model.lora=null"
        )


def layers(network: nn.Module) -> list[LoraLayer]:
    """The layers that carry adapters."""
    from peft.tuners.lora import LoraLayer

    return [module for module in network.modules() if isinstance(module, LoraLayer)]


def use_adapter(carriers: Sequence[LoraLayer], name: str | None) -> None:
    """Run with one adapter, or with none: the reference. Only the active adapter's parameters can be trained."""
    for layer in carriers:
        if name is None:
            layer.enable_adapters(False)
        else:
            layer.enable_adapters(True)
            layer.set_adapter(name)


def switch_adapter(carriers: Sequence[LoraLayer], name: str | None) -> None:
    """Run with another adapter, or with none; what can be trained stays as it is."""
    modules: Sequence[Any] = carriers
    trained = {parameter: parameter.requires_grad for layer in modules for parameter in layer.parameters()}
    use_adapter(carriers, name)
    for parameter, wanted in trained.items():
        parameter.requires_grad_(wanted)


def rounded_by_folding(network: nn.Module) -> bool:
    """Whether weights that carry adapters rest in less than float32, so that adapters lose most of a step in them.

    A weight of bfloat16 has 8 bits: what is smaller than a 256th of it changes nothing.
    """
    import torch

    bases: list[Any] = [layer.get_base_layer() for layer in layers(network)]
    return any(base.weight.dtype != torch.float32 for base in bases)


@contextmanager
def folded(network: nn.Module, name: str) -> Iterator[None]:
    """Fold an adapter into the weights for a while.

    The trained weights are put back as they were, not subtracted: nothing drifts, however often this happens.
    """
    rested = []
    for layer in layers(network):
        base: Any = layer.get_base_layer()
        rested.append((layer, base, base.weight.data))
        base.weight.data = _sum(layer, name).to(base.weight.dtype)
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer, base, weight in rested:
            base.weight.data = weight
            layer._disable_adapters = False


def adapter_state(network: nn.Module, name: str) -> tuple[dict[str, Tensor], dict[str, object]]:
    """The weights of an adapter under peft's names, and its configuration: what other tools load."""
    from peft.utils import get_peft_model_state_dict

    config: Any = network.peft_config[name]  # type: ignore[index]
    metadata = {key: sorted(v) if isinstance(v, set) else v for key, v in config.to_dict().items()}
    return get_peft_model_state_dict(network, adapter_name=name), metadata


def merged_state(network: nn.Module, name: str, *, dtype: torch.dtype | None = None) -> tuple[dict[str, Tensor], float]:
    """The weights of the plain network with an adapter folded in, and what rounding them cost.

    Args:
        network: with adapters.
        name: of the adapter.
        dtype: of all weights; None leaves each in its own.

    Returns:
        Weights by name, and the part of the adapter that was lost: the norm of the rounding errors in the weights that
        it adapts, over the norm of what it adds to them.
    """
    lost = learned = 0.0
    whole: dict[str, Tensor] = {}
    for place, layer in network.named_modules():
        if hasattr(layer, "lora_A"):
            weight = layer.get_base_layer().weight
            exact = _sum(layer, name)
            whole[f"{place}.base_layer.weight"] = rounded = exact.to(dtype or weight.dtype)
            lost += float((rounded.float() - exact).square().sum())
            learned += float((exact - weight.float()).square().sum())
    rest = {key: value for key, value in network.state_dict().items() if key not in whole and ".lora_" not in key}
    whole |= {key: value.clone() for key, value in in_precision(rest, dtype).items()}
    named = {key.replace(".base_layer.", "."): value for key, value in whole.items()}
    return named, (lost / learned) ** 0.5 if learned else 0.0


def in_precision(weights: dict[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Weights whose floating-point numbers have a precision; None leaves each in its own."""
    return {key: value.detach().to(dtype if value.is_floating_point() else None) for key, value in weights.items()}


def _sum(layer: Any, name: str) -> Tensor:
    """A weight in float32, with its adapter in it."""
    weight: Tensor = layer.get_base_layer().weight.detach()
    delta: Tensor = layer.get_delta_weight(name).detach()
    return weight.float() + delta
