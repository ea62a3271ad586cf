"""From a directory to a language model: which family it is, and whether it is a model at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.options import LanguageModelOptions, ModelOptions
from burnish.registry import entries, lookup
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.paths import resolve
from burnish.utils.reading import check_folder, understood
from burnish.utils.weights import complaints_about, tokenizer_complaint

if TYPE_CHECKING:
    from burnish.language.model import LanguageModel

KIND = "language model"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
EXPERTS = ("num_experts", "num_local_experts")  # what config.json may call them: transformers has renamed them


def read_config(options: ModelOptions) -> tuple[Path, dict[str, Any]]:
    """The directory of a language model and its config.json.

    Raises:
        UserError: there is no such directory, or it is not in transformers layout.
    """
    path = resolve(options.path)
    if not path.is_dir():
        raise UserError(f"model.path is {options.path}, which is not a directory; it must hold a transformers model")
    check_folder(path)
    try:
        return path, read_object(path / "config.json")
    except FileNotFoundError:
        raise UserError(
            f"model.path is {options.path}, which has no config.json; "
            "it must be a model as transformers' save_pretrained writes it"
        ) from None


def check_experts(options: LanguageModelOptions) -> None:
    """Refuse to balance experts that are not there, by config.json alone.

    Raises:
        UserError: the model is dense, and has a coefficient.
    """
    if not options.router_aux_loss_coef:
        return
    _, config = read_config(options)
    text = config.get("text_config") or config
    if not any(text.get(name) for name in EXPERTS):
        raise UserError(
            f"model.router_aux_loss_coef is {options.router_aux_loss_coef:g}, but {options.path} is no mixture of "
            f"experts (its config.json has no {' or '.join(EXPERTS)}); leave it out"
        )


def family_of(options: ModelOptions, config: dict[str, Any]) -> Any:
    """The family that reads a language model.

    Raises:
        UserError: no family does.
    """
    written = config.get("model_type")
    if options.family != "auto":
        named = lookup(KIND, options.family)
        if written not in named.model_types:
            raise UserError(
                f"model.family is {options.family}, which computes {', '.join(named.model_types)}, but the model_type "
                f"of {options.path} is {written}, and would be computed wrongly; leave model.family out"
            )
        return named
    # of two that read the same models, a plugin's is taken only where it is named
    families = {kind: family for family in reversed(entries(KIND)) for kind in family.model_types}
    if not isinstance(written, str) or written not in families:
        known = ", ".join(sorted(families))
        raise UserError(
            f"model.path is {options.path}, whose model_type is {written}; Burnish trains {known}; give one of these"
        )
    return families[written]


def check_files(options: ModelOptions) -> None:
    """Refuse a directory that lacks what a model of its family needs beside its configuration, or holds half of it.

    Raises:
        UserError: with all that is wrong.
    """
    path, config = read_config(options)
    family = family_of(options, config)
    found = list(complaints_about(path))
    if complaint := tokenizer_complaint(path):
        found.append(complaint)
    if family.sees and not any((path / name).is_file() for name in PROCESSORS):
        found.append(f"{path} has no {PROCESSORS[0]}, which says how pictures are processed; fetch the model again")
    if family.sees and not _has_template(path):
        found.append(
            f"{path} has no chat template (chat_template.jinja), which says where pictures stand in a prompt; fetch it"
        )
    if found:
        raise UserError("\n".join(f"model.path: {one}" for one in found))


def _has_template(path: Path) -> bool:
    if any((path / name).is_file() for name in TEMPLATES):
        return True
    described = [path / name for name in ("tokenizer_config.json", "processor_config.json")]
    return any("chat_template" in read_object(file) for file in described if file.is_file())


def load_language_model(options: ModelOptions) -> LanguageModel:
    """Load the model that ``options`` describe, frozen and in evaluation mode."""
    import torch

    path, config = read_config(options)
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("model.device is cuda, but PyTorch sees no GPU; use model.device=cpu or auto")
    compute = getattr(torch, options.dtype)
    # frozen weights may rest in half precision; trained ones keep a float32 master copy
    stored = compute if options.lora is not None else torch.float32
    family = family_of(options, config)
    with understood(f"model.path is {options.path}, which can't be loaded as {family.name}"):
        model: LanguageModel = family.load(path, dtype=stored, compute=compute, device=device)
    if options.gradient_checkpointing:
        _checkpoint(model.network)
    return model


def _checkpoint(network: Any) -> None:
    """Have the inside of each layer computed again in the backward pass.

    transformers does so only for layers that are in training mode. What is inside them stays as it is, since that is
    where dropout would begin.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in network.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.training = True
