"""Runs whose model is what a test is about: begun by the command line, or refused."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.tiny_run import TinyRun, burnish


def run_of(files: Path, model: str, *options: str, name: str = "run") -> TinyRun:
    """A run of a policy gradient with a tiny model, or with another one that lies in FILES/MODEL."""
    if not (files / model).exists():
        burnish("tiny", model, files / model)
    draws = any((files / model).glob("*model_index.json"))
    usual = [] if any(one.startswith("algorithm=") for one in options) else [f"algorithm={'flow_' * draws}grpo"]
    usual += [] if any(one.startswith("validation.") for one in options) else ["validation.every=0"]
    return TinyRun(files, "generators" if draws else "language", model, *usual, *options, name=name)


def refused(files: Path, model: str, *options: str, names: Sequence[str] = ()) -> str:
    """What such a run is refused with, in which these names have to be."""
    if "runtime=ray" in options and find_spec("ray") is None:
        pytest.skip("needs Ray")
    told = run_of(files, model, *options).train(status=2).message
    assert [name for name in names if name not in told] == [], told
    return told


def changed(file: Path, **changes: object) -> None:
    """Change some values of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
