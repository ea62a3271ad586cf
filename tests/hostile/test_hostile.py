"""Hostile inputs are answered well: one of each kind here, all of them by `python -m tests.hostile`."""

import os
import subprocess
import sys

import pytest

from tests.support.shown import ROOT


@pytest.mark.thorough
def test_a_sample_of_every_kind_is_answered_well():
    """In the words of the command that is documented."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.hostile", "--sample"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-3000:]
    assert "tried" in done.stdout
