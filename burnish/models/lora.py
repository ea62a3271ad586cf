"""Low-rank adapters: several on the same weights, switched, copied, and folded in while sampling."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.options import LoraOptions

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer
    from torch import Tensor, nn


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

    modules = [name for name, module in network.named_modules() if isinstance(module, torch.nn.Linear)]

    def matches(target: str) -> bool:
        return any(name == target or name.endswith(f".{target}") for name in modules)

    targets = [target for target in default_targets if matches(target)] if options.targets is None else options.targets
    if not targets:
        raise UserError(f"model.lora.targets names no layer; layers are called like {', '.join(modules[:3])}")
    for target in targets:
        if not matches(target):
            raise UserError(
                f"model.lora.targets has {target!r}, which is the end of no linear layer's name; "
                f"layers are called like {', '.join(modules[:3])}"
            )
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


@contextmanager
def folded(network: nn.Module, name: str) -> Iterator[None]:
    """Fold an adapter into the weights for a while.

    The trained weights are put back as they were, not subtracted: nothing drifts, however often this happens.
    """
    import torch

    rested = []
    for layer in layers(network):
        base = layer.get_base_layer()
        rested.append((layer, base, base.weight.data))
        with torch.no_grad():
            base.weight.data = base.weight.data + layer.get_delta_weight(name).to(base.weight.dtype)  # type: ignore[attr-defined]
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


def merged_state(network: nn.Module, name: str) -> dict[str, Tensor]:
    """The weights of the plain network with an adapter folded in."""
    with folded(network, name):
        return {
            key.replace(".base_layer.", "."): value.detach().clone()
            for key, value in network.state_dict().items()
            if ".lora_" not in key
        }
