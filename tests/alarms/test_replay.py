"""The metrics of thirteen recorded runs: five spoiled ones are named by the rules of now, and honest ones are not.

They were recorded by ``python -m benchmarks.alarms --record tests/alarms/recorded.json``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.alarms import REWARD, RUNS, configured, replayed, rows_of
from burnish.config.run_folder import RunFolder

RECORDED = Path(__file__).with_name("recorded.json")


@pytest.fixture(scope="module")
def recorded():
    found = json.loads(RECORDED.read_text())
    assert found.keys() == RUNS.keys()
    return found


@pytest.mark.parametrize("name", RUNS)
def test_spoiled_runs_are_named_and_honest_ones_are_not(name, recorded, tmp_path):
    _, config = configured(name, tmp_path)
    raised = replayed(config, RunFolder(tmp_path), rows_of(recorded[name]))
    assert RUNS[name].as_it_should_be(one["name"] for one in raised), raised


@pytest.mark.parametrize("name", ["dark", "checkerboard"])
def test_pictures_that_cheat_are_named_before_half_of_its_gain(name, recorded, tmp_path):
    _, config = configured(name, tmp_path)
    first, *_ = replayed(config, RunFolder(tmp_path), rows_of(recorded[name]))
    rewards = recorded[name][REWARD]
    assert rewards[first["update"] - 1] < (rewards[0] + rewards[-1]) / 2
