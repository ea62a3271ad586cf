"""Runs with a checkpoint of each of three updates."""

import shutil
from pathlib import Path

import pytest

from tests.support.tiny_run import TinyRun


@pytest.fixture(scope="module")
def trained(files: Path) -> TinyRun:
    """One that all tests of a module look at, and none changes."""
    given = ["algorithm=sft", "data.train_files={data}/responses.jsonl", "trainer.mini_batch_size=1"]
    kept = ["checkpoint.every=1", "checkpoint.keep_last=9", "validation.every=1"]
    run = TinyRun(files, "language", "llama", *given, *kept, name="checkpoints")
    run.train()
    return run


@pytest.fixture
def run(trained: TinyRun, tmp_path: Path) -> TinyRun:
    """A copy of it, which a test may damage and go on with."""
    return moved(trained, Path(shutil.copytree(trained.output, tmp_path / "run")))


def moved(run: TinyRun, output: Path, *more: str) -> TinyRun:
    """The same command with another folder, and with other options."""
    copy = object.__new__(TinyRun)
    copy.output, copy.recipe = output, run.recipe
    given = {option.partition("=")[0]: option for option in [*run.options, *more, f"output_dir={output}"]}
    copy.options = list(given.values())
    return copy
