"""Which layers of a language model get adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from burnish.options import LanguageLoraOptions

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def default_targets(network: Any, decoder: nn.Module, options: LanguageLoraOptions) -> list[str]:
    """The layers that are adapted where the user names none: projections of the decoder, by their whole names.

    Endings of names would do for a model that only reads; the layers of a vision tower may be called alike.

    Args:
        network: the model.
        decoder: its part that reads and writes text.
        options: whether the vision tower is adapted, too.

    Raises:
        UserError: there is no vision tower, or the user's targets name the language head.
    """
    import torch

    names = {module: name for name, module in network.named_modules()}
    head = names[network.get_output_embeddings()]
    for target in options.targets or ():
        if head == target or head.endswith(f".{target}"):
            raise UserError(
                f"model.lora.targets has {target!r}, the language head, whose weights Burnish multiplies with by "
                "itself: an adapter there would do nothing; leave it out, or train all weights without model.lora"
            )
    inside = {module for module in decoder.modules() if isinstance(module, torch.nn.Linear)}
    linear = {module: name for module, name in names.items() if isinstance(module, torch.nn.Linear)}
    found = [name for module, name in linear.items() if module in inside and name.split(".")[-1] in PROJECTIONS]
    if options.vision:
        tower = [name for module, name in linear.items() if module not in inside and name != head]
        if not tower:
            raise UserError("model.lora.vision is true, but the model has no vision tower; leave it out")
        found += tower
    return found
