"""Classes that a model_index.json names for a pipeline's parts: only those whose files can be looked at are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from burnish.utils.errors import UserError

ANY_MODEL = "AutoModel"  # beginnings of names of classes that would look into the part's folder for what they are


def check_classes(path: Path, index: Mapping[str, Any], names: list[str]) -> None:
    """Refuse parts whose class is none, or that are pipelines: theirs would be read by diffusers, unseen.

    Args:
        path: folder of the pipeline.
        index: its model_index.json, as ``read_index`` returns it.
        names: of its parts.

    Raises:
        UserError: naming the part.
    """
    import diffusers

    for name in names:
        library, named = index[name]
        where = f"{path / 'model_index.json'} has {named!r:.80} of {library} for {name}"
        kind = class_of(library, named)
        if kind is None:
            version = import_module("transformers" if library == "transformers" else "diffusers").__version__
            raise UserError(f"{where}, which version {version} doesn't have; restore the file, or upgrade {library}")
        if issubclass(kind, diffusers.DiffusionPipeline):
            raise UserError(f"{where}, which is a pipeline itself; give a pipeline whose parts are networks")
        if kind.__name__.startswith(ANY_MODEL):
            raise UserError(f"{where}, which may be any network; name its class, as {name}/config.json has it")


def class_of(library: str, named: object) -> Any:
    """The class of a part as diffusers loads it; None if there is none.

    Args:
        library: transformers, diffusers, or the folder of a pipeline of diffusers.
        named: what model_index.json says beside it.
    """
    import diffusers

    if not isinstance(named, str):
        return None
    if library == "transformers":
        homes: list[Any] = [import_module("transformers")]
    else:
        homes = [getattr(diffusers.pipelines, library, None), diffusers]
    for home in homes:
        found = getattr(home, named, None)
        if isinstance(found, type) and hasattr(found, "from_pretrained"):
            return found
    return None
