"""Tiny models of any class."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from burnish.models.tiny import LANGUAGE
from burnish.models.tiny.language import write
from tests.support.talkers import load

TINY = {tiny.name: tiny for tiny in LANGUAGE}
PAGE = (Path(__file__).parents[2] / "docs/language_models.md").read_text().splitlines()


@cache
def universal_folder(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"burnish-{name}-"))
    write(TINY[name], folder, seed=0)
    return folder


@cache
def universal_model(name: str) -> Any:
    return as_documented(load(universal_folder(name)), name)


def as_documented(model: Any, name: str) -> Any:
    """A model that runs as the page says: a fault in one way would hide behind the one that it falls back to."""
    known = model.capabilities
    rows = "packed" if known.packed else "padded" if known.padded else "alone"
    ways = f"| {rows} | {'own' if known.fast else 'class' if known.cache != 'none' else 'no cache'} |"
    assert [line for line in PAGE if f"| {name} |" in line and ways in line], ways
    return model
