"""Teachers for distillation: whether one fits its student, by their configuration files, and loading it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.diffusion.options import ModelOptions, RolloutOptions
from burnish.diffusion.pipeline.loaded import LoadedPipeline
from burnish.diffusion.pipeline.loading import load_model, parts_of, read_index
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.paths import resolve
from burnish.utils.weights import complaints_about

if TYPE_CHECKING:
    from burnish.diffusion.pipeline.base import FlowModel

SHAPES = ("in_channels", "joint_attention_dim", "pooled_projection_dim")  # of latents and of embeddings
IGNORED = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")  # keys of a configuration


def check_teacher(
    student: ModelOptions, path: str | None, lora: str | None, option: str, *, revision: str | None = None
) -> None:
    """Refuse a teacher that can't read the student's latents and embeddings.

    Args:
        student: the model that is trained.
        path: directory of the teacher's pipeline; None is the student's.
        lora: directory of an adapter for it, or None.
        option: the teacher's option in the configuration.
        revision: of the path, if that is a model of the hub.

    Raises:
        UserError: its family, latents, embeddings or text encoders differ, or the adapter is missing.
    """
    if lora is not None and not list(resolve(lora).glob("*.safetensors")):
        raise UserError(f"{option}.lora is {lora}, which is not a directory with an adapter (.safetensors) in it")
    if path is None:
        return
    try:
        theirs, their_index = read_index(replace(student, path=path, revision=revision))
    except UserError as error:
        raise UserError(str(error).replace("model.", f"{option}.")) from None
    ours, our_index = read_index(student)
    cut = [
        one for part in ("transformer", "vae") if (theirs / part).is_dir() for one in complaints_about(theirs / part)
    ]
    if cut:
        raise UserError(f"{option}.path is {path}: {'; '.join(cut)}")
    kinds = their_index.get("_class_name"), our_index.get("_class_name")
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{option}.path is {path}, a {kinds[0]}, but model.path is a {kinds[1]}; use one of the same class"
        )
    for name in SHAPES:
        values = [_config(where, "transformer").get(name) for where in (theirs, ours)]
        if values[0] != values[1]:
            raise UserError(
                f"{option}.path is {path}, whose {name} is {values[0]}, but that of model.path is {values[1]}; "
                "a teacher must read the same latents and embeddings"
            )
    for part in sorted(_encoders(their_index) | _encoders(our_index)):
        if _config(theirs, part) != _config(ours, part):
            raise UserError(
                f"{option}.path is {path}, whose {part} differs from that of model.path; a teacher must have the "
                "student's text encoders, because it reads their embeddings"
            )


def load_teacher(
    options: ModelOptions,
    student: FlowModel,
    path: str | None,
    lora: str | None,
    rollout: RolloutOptions | None = None,
    *,
    revision: str | None = None,
) -> FlowModel:
    """A frozen model in the student's precision, with the student's text encoders and an optional adapter merged."""
    options = replace(options, quantization=None)
    given = student.text_encoders if isinstance(student, LoadedPipeline) else {}
    if path is not None:
        options = replace(options, path=path, revision=revision)
    try:
        model = load_model(options, rollout, given=given, frozen=True)
    except UserError as error:
        raise UserError(str(error).replace("model.path is", "algorithm.teachers has")) from error
    if lora is not None:
        model.fold_lora(resolve(lora))
    return model


def _encoders(index: dict[str, Any]) -> set[str]:
    return {name for name in parts_of(index) if name.startswith("text_encoder")}


def _config(pipeline: Path, part: str) -> dict[str, Any]:
    """The configuration of a part of a pipeline; {} if there is none."""
    file = pipeline / part / "config.json"
    if not file.is_file():
        return {}
    return {key: value for key, value in read_object(file).items() if key not in IGNORED}
