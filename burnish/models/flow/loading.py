"""From a directory to a model: which family it is, and whether it is a pipeline at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.options import ModelOptions
from burnish.registry import lookup, names
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.paths import resolve
from burnish.utils.reading import check_folder, understood

if TYPE_CHECKING:
    from burnish.models.flow.base import FlowModel

STANDARD_SIDE = 128  # latent positions to a side where a transformer's configuration names none: FLUX's pipeline
LIBRARIES = ("diffusers", "transformers")  # whose classes a pipeline may be made of


def read_index(options: ModelOptions) -> tuple[Path, dict[str, Any]]:
    """The directory of a model and its model_index.json.

    Raises:
        UserError: there is no such directory, or it is not a pipeline in diffusers layout.
    """
    path = resolve(options.path)
    if not path.is_dir():
        raise UserError(f"model.path is {options.path}, which is not a directory; it must hold a diffusers pipeline")
    index = path / "model_index.json"
    check_folder(path)
    try:
        content = read_object(index)
    except FileNotFoundError:
        raise UserError(
            f"model.path is {options.path}, which has no model_index.json; "
            "it must be a pipeline as diffusers' save_pretrained writes it"
        ) from None
    if not isinstance(content.get("_class_name", ""), str):
        raise UserError(f"{index} says {content['_class_name']!r:.80} of _class_name, which must be a pipeline's class")
    named = _listed(content)
    if malformed := [name for name, kind in named.items() if len(kind) != 2]:
        raise UserError(
            f"{index} says {named[malformed[0]]!r:.80} of {malformed[0]}, which must be a library and a class"
        )
    parts = parts_of(content)
    # diffusers would import whatever module stands there
    if strange := [name for name in parts if content[name][0] not in LIBRARIES]:
        raise UserError(
            f"{index} takes {strange[0]} from {content[strange[0]][0]!r:.80}; parts must be of {' or '.join(LIBRARIES)}"
        )
    if strange := [name for name in parts if not re.fullmatch(r"\w+", name)]:
        raise UserError(f"{index} lists {strange[0]!r:.80}, which is no name of a pipeline's part; restore it")
    absent = [name for name in parts if not (path / name).is_dir()]
    if absent:
        raise UserError(
            f"model.path is {options.path}, which lacks {', '.join(absent)}, as its model_index.json lists; fetch the "
            "model again"
        )
    return path, content


def parts_of(index: dict[str, Any]) -> list[str]:
    """The parts that a pipeline has, by its model_index.json."""
    return [name for name, kind in _listed(index).items() if kind[0] is not None]


def _listed(index: dict[str, Any]) -> dict[str, list[Any]]:
    """What a model_index.json says of parts, those that are left out included."""
    return {name: kind for name, kind in index.items() if isinstance(kind, list) and not name.startswith("_")}


def standard_side(path: Path) -> int:
    """Pixels to a side of the pictures that a pipeline draws where no size is asked for, by its configurations."""
    transformer, vae = (_written(path / part / "config.json") for part in ("transformer", "vae"))
    side = transformer.get("sample_size") or STANDARD_SIDE
    factor: int = 2 ** (len(vae.get("block_out_channels", [0])) - 1)
    return int(side) * factor


def _written(file: Path) -> dict[str, Any]:
    return read_object(file) if file.is_file() else {}


def family_of(options: ModelOptions, index: dict[str, Any]) -> Any:
    """The model family that reads a pipeline.

    Raises:
        UserError: no family does.
    """
    if options.family != "auto":
        return lookup("flow model", options.family)
    written = index.get("_class_name")
    families = {lookup("flow model", name).pipeline_class: lookup("flow model", name) for name in names("flow model")}
    if not isinstance(written, str) or written not in families:
        known = ", ".join(sorted(families))
        raise UserError(f"model.path is {options.path}, a {written}; Burnish trains {known}; give one of these")
    return families[written]


def load_model(
    options: ModelOptions,
    *,
    max_sequence_length: int | None = None,
    embedded_guidance: float | None = None,
    network_only: bool = False,
) -> FlowModel:
    """Load the model that ``options`` describe, frozen and in evaluation mode.

    Args:
        options: which model, and in what precision.
        max_sequence_length: prompt tokens of the T5 encoder; None takes the pipeline's default.
        embedded_guidance: guidance that a guidance-distilled network is told; None takes the pipeline's default.
        network_only: it is neither trained nor asked to encode prompts, so text encoders stay on disk.

    Raises:
        UserError: it can't be loaded, or can't do what is asked.
    """
    import torch

    path, index = read_index(options)
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("model.device is cuda, but PyTorch sees no GPU; use model.device=cpu or auto")
    compute = getattr(torch, options.dtype)
    # frozen weights may rest in half precision; trained ones keep a float32 master copy
    stored = compute if options.lora is not None or network_only else torch.float32
    family = family_of(options, index)
    family.check_options(path, max_sequence_length=max_sequence_length, embedded_guidance=embedded_guidance)
    where = f"model.path is {options.path}"
    try:
        with understood(f"{where}, which can't be loaded as a {family.pipeline_class}"):
            model: FlowModel = family.load(
                path, index, dtype=stored, compute=compute, device=device,
                max_sequence_length=max_sequence_length, embedded_guidance=embedded_guidance,
                network_only=network_only,
            )  # fmt: skip
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(where) else f"{where}: {error}") from error
    if options.gradient_checkpointing and not network_only:
        model.recompute_activations()
    return model
