"""A run with a checkpoint of each of three updates."""

import shutil
from pathlib import Path

import pytest

from tests.support.checkpoints import kept, run_of
from tests.support.tiny_run import TinyRun


@pytest.fixture(scope="module")
def whole(files: Path) -> TinyRun:
    """One that all tests of a module look at, and none changes."""
    run = run_of(files, "whole")
    run.train()
    assert kept(run.output) == [1, 2, 3]
    return run


@pytest.fixture
def copy(whole: TinyRun, files: Path) -> TinyRun:
    """The same run, to be damaged."""
    run = run_of(files, "copy")
    shutil.copytree(whole.output, run.output)
    return run
