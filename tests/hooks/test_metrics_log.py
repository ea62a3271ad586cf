"""metrics.jsonl and TensorBoard end as if a run had never been killed."""

from __future__ import annotations

import json
import math

import pytest

from burnish.config.run_folder import STEP, RunFolder
from burnish.hooks.metrics import MetricsLog, drop_after

VALUES = {"actor/lr": 0.1 + 0.2, "critic/rewards/mean": 1e-300, "actor/loss": -0.0, "val-aux/naïve": 1 / 3}


def log(folder, updates, resumed_at=None):
    hook = MetricsLog(folder, resumed_at=resumed_at)
    hook.start(resumed_at or 0)
    for update in updates:
        hook(update, {name: value * (update + 1) for name, value in VALUES.items()})
    hook.close()


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The file of a run that was never interrupted, 0 to 5."""
    folder = RunFolder(tmp_path_factory.mktemp("whole") / "run")
    log(folder, range(6))
    return folder.metrics.read_bytes()


def test_a_line_is_an_object_that_begins_with_its_update_and_reads_back_bit_by_bit(whole):
    for update, line in enumerate(whole.splitlines()):
        row = json.loads(line)
        assert next(iter(row)) == STEP
        assert row == {STEP: update} | {name: value * (update + 1) for name, value in VALUES.items()}
        assert math.copysign(1, row["actor/loss"]) == -1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_null_because_json_has_no_nan(folder, value):
    hook = MetricsLog(folder, resumed_at=None)
    hook.start(0)
    hook(1, {"actor/loss": value})
    hook.close()
    assert folder.metrics.read_text() == f'{{"{STEP}": 1, "actor/loss": null}}\n'


@pytest.mark.parametrize("resumed_at", [1, 3])
def test_after_a_kill_at_any_byte_the_file_is_that_of_a_run_without_one(folder, whole, resumed_at):
    folder.path.mkdir()
    kept = b"".join(whole.splitlines(keepends=True)[: resumed_at + 1])
    lines = whole.splitlines(keepends=True)
    for length in {*range(len(whole) - len(lines[-1]) - len(lines[-2]), len(whole), 7), len(whole) - 1, len(whole)}:
        folder.metrics.write_bytes(whole[:length])
        drop_after(folder, resumed_at)
        assert folder.metrics.read_bytes() == kept
    log(folder, range(resumed_at + 1, 6), resumed_at=resumed_at)
    assert folder.metrics.read_bytes() == whole


def test_a_line_that_only_lacks_its_end_is_whole(folder, whole):
    folder.path.mkdir()
    folder.metrics.write_bytes(whole[:-1])
    log(folder, [], resumed_at=5)
    assert folder.metrics.read_bytes() == whole


def test_a_character_cut_in_two_is_no_line(folder):
    folder.path.mkdir()
    folder.metrics.write_bytes(f'{{"{STEP}": 1}}\n{{"{STEP}": 2, "na\u00ef'.encode()[:-1])
    log(folder, [], resumed_at=2)
    assert folder.metrics.read_text() == f'{{"{STEP}": 1}}\n'
