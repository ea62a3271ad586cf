"""Which layers of a network get adapters, and which modules are trained in full beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from burnish.options.language import LanguageLoraOptions
from burnish.options.model import LoraOptions
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from torch import nn

ROUTERS = ("router", "gate", "shared_expert_gate")  # parts of names of what chooses among experts
HEAD = "the language head, which Burnish applies without adapters"
PASSED_BY = "the output projection of a Mamba layer, whose kernels read its weight without its adapter"


def linear_kinds() -> tuple[type[nn.Module], ...]:
    """The classes of linear layers: torch's, and that of GPT-2, whose weight has its inputs first."""
    import torch
    from transformers.pytorch_utils import Conv1D

    return torch.nn.Linear, Conv1D


def is_transposed(layer: nn.Module) -> bool:
    """Whether a linear layer's weight is [inputs, outputs]."""
    return not isinstance(layer, linear_kinds()[0])


def chosen(
    linear: Mapping[str, nn.Module], options: LoraOptions, default: Sequence[str], saved: Sequence[str]
) -> tuple[list[str], list[str]]:
    """What peft is told to adapt, and the full names of the layers that this means."""
    ends = set[str]().union(*map(ends_of, linear))
    targets = [target for target in default if target in ends] if options.targets is None else options.targets
    if not targets:
        raise UserError(f"model.lora.targets names no layer; give names such as {', '.join(list(linear)[:3])}")
    for target in targets:
        if target not in ends:
            raise UserError(
                f"model.lora.targets has {target!r}, which matches the end of no linear layer's name; "
                f"names are like {', '.join(list(linear)[:3])}"
            )
    found = [name for name in linear if ends_with(name, targets)]
    out = excluded(found, options.exclude, "model.lora.exclude", "get an adapter")
    inside = {name for name in found if any(f"{name}.".startswith(f"{module}.") for module in saved)}
    if inside and options.targets is not None:
        raise UserError(
            f"model.lora.modules_to_save trains {min(inside)} in full, which model.lora.targets has too; add it to "
            "model.lora.exclude"
        )
    left = [name for name in found if name not in out | inside]
    if not left:
        raise UserError(f"model.lora.exclude is {options.exclude}, which leaves no layer to adapt; exclude fewer")
    return (left if len(left) < len(found) else list(targets)), left


def saved_in_full(network: nn.Module, options: LoraOptions) -> list[str]:
    """Full names of the modules that are trained beside the adapters.

    Raises:
        UserError: a name matches none, or a module shares its weights with another.
    """
    found: list[str] = []
    modules = dict(network.named_modules())
    wanted = options.modules_to_save if isinstance(options, LanguageLoraOptions) else []
    for ending in wanted:
        matched = [name for name in modules if name and ends_with(name, [ending])]
        if not matched:
            known = ", ".join([name for name in modules if name][:3])
            raise UserError(
                f"model.lora.modules_to_save has {ending!r}, which matches the end of no module's name; names are like "
                f"{known}"
            )
        found += [name for name in matched if name not in found]
    owners: dict[int, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False) if found else ():
        other = owners.setdefault(id(parameter), name)
        if other != name and any(one.startswith(f"{module}.") for module in found for one in (name, other)):
            raise UserError(
                f"model.lora.modules_to_save is {wanted}, but {name} and {other} are one weight (tied embeddings): a "
                "copy of one of them would take them apart; remove it, or train all weights with model.lora=null"
            )
    return found


def excluded(names: Collection[str], patterns: Sequence[str], option: str, what: str) -> set[str]:
    """The layers that ``patterns`` match: ends of names, or with wildcards.

    Raises:
        UserError: a pattern matches none; ``option`` gives them, and ``what`` tells what would become of the layers.
    """
    out = set[str]()
    for pattern in patterns:
        matched = {name for name in names if ends_with(name, [pattern]) or fnmatchcase(name, pattern)}
        if not matched:
            raise UserError(
                f"{option} has {pattern!r}, which matches none of the layers that would {what}; they are called like "
                f"{', '.join(list(names)[:3])}"
            )
        out |= matched
    return out


def ends_of(name: str) -> set[str]:
    """A layer's name, and what follows each of its dots."""
    parts = name.split(".")
    return {".".join(parts[start:]) for start in range(len(parts))}


def ends_with(name: str, targets: Sequence[str]) -> bool:
    """Whether a layer's name is a target, or ends with one after a dot."""
    return not ends_of(name).isdisjoint(targets)


def is_passed_by(network: nn.Module, name: str) -> bool:
    """Whether a layer's weight is read by a kernel that never calls the layer: the output projection of Mamba."""
    owner, _, own = name.rpartition(".")
    return own == "out_proj" and all(hasattr(network.get_submodule(owner), part) for part in ("A_log", "D", "conv1d"))


def adapter_complaint(layer: Any) -> str:
    """Why adapters can't be added to what a linear layer of one of transformers' own classes returns; "" if they can.

    Adapters take any numbers along the input's last axis, and return as many as the layer has outputs.
    """
    import copy

    import torch

    own = type(layer).__module__.startswith("transformers.models.")
    if not own or type(layer).forward is torch.nn.Linear.forward or is_transposed(layer):
        return ""
    other = copy.copy(layer)
    other._parameters = {
        name: None if value is None else torch.nn.Parameter(value.detach().to("meta"))
        for name, value in layer._parameters.items()
    }
    rows = torch.empty(1, layer.in_features, dtype=layer.weight.dtype, device="meta")
    try:
        found = other(rows)
        if isinstance(found, torch.Tensor):
            found = other(rows[None])
    except RuntimeError:  # its input has an axis of groups, each with weights of its own
        return "whose groups of inputs have weights of their own, which adapters haven't"
    if not isinstance(found, torch.Tensor):
        return "a router, which returns its choice of experts beside their scores; adapters would change scores alone"
    if found.shape != (1, 1, layer.out_features):
        return f"whose output has shape {list(found.shape)} for {layer.out_features} features, which no adapter gives"
    return ""


def router_outputs(network: nn.Module) -> dict[nn.Module, int]:
    """Modules of mixtures of experts that return router logits [..., E], and at which place of what they return.

    As transformers' classes record them for ``output_router_logits``.
    """
    found: dict[nn.Module, int] = {}
    for model in network.modules():
        named = (getattr(model, "_can_record_outputs", None) or {}).get("router_logits", ())
        for recorder in named if isinstance(named, list | tuple) else [named]:
            found |= {
                module: recorder.index for name, module in model.named_modules()
                if isinstance(module, recorder.target_class) and (recorder.layer_name or "") in name
            }  # fmt: skip
    return found


def language_targets(network: Any, decoder: nn.Module, options: LanguageLoraOptions) -> list[str]:
    """Default target layers of a language model: the decoder's linear layers but routers, by full name.

    Full names, because layers of a vision tower may have the same endings.

    Args:
        network: the model.
        decoder: its language part.
        options: whether the vision tower is adapted too.

    Raises:
        UserError: there is no vision tower, or the user's targets name the language head.
    """
    names = {module: name for name, module in network.named_modules()}
    linear = {module: name for module, name in names.items() if isinstance(module, linear_kinds())}
    head, inside = names[network.get_output_embeddings()], set(decoder.modules())
    ours = {name: module for module, name in linear.items() if module in inside and name != head}
    unfit = {name: why for name, module in ours.items() if (why := adapter_complaint(module))}
    unfit |= {name: PASSED_BY for name in ours if is_passed_by(network, name)} | {head: HEAD}
    for target in options.targets or ():
        if wrong := [name for name in unfit if ends_with(name, [target])]:
            raise UserError(
                f"model.lora.targets has {target!r}, {unfit[min(wrong)]}; remove it, name other layers in full, or "
                "train all weights with model.lora=null"
            )
    found = [name for name in ours if name not in unfit and set(name.split(".")).isdisjoint(ROUTERS)]
    if options.vision:
        tower = [name for module, name in linear.items() if module not in inside and name != head]
        if not tower:
            raise UserError("model.lora.vision is true, but the model has no vision tower; remove it")
        found += tower
    return found
