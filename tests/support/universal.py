"""Tiny models of any class."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from burnish.models.tiny import LANGUAGE
from burnish.models.tiny.language import write
from tests.support.talkers import load

TINY = {tiny.name: tiny for tiny in LANGUAGE}


@cache
def universal_folder(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"burnish-{name}-"))
    write(TINY[name], folder, seed=0)
    return folder


@cache
def universal_model(name: str) -> Any:
    return load(universal_folder(name))
