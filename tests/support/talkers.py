"""A language model as a run loads it, and folders of other tiny ones than ``burnish tiny`` writes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from burnish.language.model.loading import load_language_model
from burnish.models.tiny import TinyLanguage
from burnish.models.tiny.language import write
from burnish.options.language import LanguageModelOptions


def load(path: Path, **given: Any) -> Any:
    return load_language_model(LanguageModelOptions(**{"path": str(path), "device": "cpu"} | given))


def written(folder: Path, tiny: TinyLanguage | None = None, **described: Any) -> Path:
    """A tiny model of a class that is not among those of ``burnish tiny``, or one of these otherwise."""
    write(replace(tiny, **described) if tiny else TinyLanguage(**{"tokenizer": "pieces"} | described), folder, 0)
    return folder
