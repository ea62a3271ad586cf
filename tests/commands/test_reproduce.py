"""`burnish reproduce`: a run again is equal, in the band of seeds, or neither."""

import json
import re
import subprocess
import sys

import pytest

from tests.support.reports import Story, run_folder
from tests.support.tiny_run import TinyRun, burnish


@pytest.fixture(scope="module")
def run(files):
    options = ("algorithm=flow_grpo", "steps=2", "validation.every=1")
    run = TinyRun(files, "generators", "sd3", *options, name="reproduced")
    run.train()
    return run


@pytest.fixture
def again(run, monkeypatch):
    """Stands in for the processes that train again: a copy of the run, and the rewards that the test says by seed."""
    rewards: dict[int, float | None] = {}
    real = subprocess.Popen

    def start(command, **more):
        folder = json.loads(command[-2].removeprefix("output_dir="))
        seed = int(command[-3].removeprefix("seed="))
        assert command[-1] == "resume=never"
        program = (
            f"import json, pathlib, shutil; p = pathlib.Path({folder!r}); shutil.copytree({str(run.output)!r}, p)\n"
            "f = p / 'metrics.jsonl'; rows = [json.loads(line) for line in f.read_text().splitlines()]\n"
            "rows[-1]['timing_s/step'] = 99.0\n"
            "name = next(name for name in rows[-1] if name.startswith('val-core/') and '/reward/mean@' in name)\n"
            f"rows[-1][name] = {rewards.get(seed)} or rows[-1][name]\n"
            "f.write_text(''.join(json.dumps(row) + '\\n' for row in rows))\n"
        )
        return real([sys.executable, "-S", "-c", program], **more)

    monkeypatch.setattr(subprocess, "Popen", start)
    return rewards


def test_an_equal_run_is_equal_whatever_its_clock_said(run, again, tmp_path):
    said = burnish("reproduce", run.output, "--output", tmp_path / "again").out
    assert "equal: " in said.replace("not equal", "")
    assert (tmp_path / "again" / "seed=0" / "metrics.jsonl").exists()
    assert str(tmp_path / "again") in burnish("reproduce", run.output, "-o", tmp_path / "again", status=2).err


@pytest.mark.parametrize(("by_seed", "code", "says"), [
    ({0: 99.0}, 1, "outside the band"), ({0: 99.0, 1: -99.0}, 0, "within the band"),
])  # fmt: skip
def test_another_number_is_named_and_held_to_the_band_of_seeds(run, again, tmp_path, by_seed, code, says):
    again |= by_seed if code == 0 else by_seed | {1: 98.0, 2: 97.0}
    said = burnish("reproduce", run.output, "--seeds", 2, "--output", tmp_path / "again", status=code).out
    assert re.search(r"not equal: val-core/.* of update 2 .*" + says + r" .*\(3 runs\)", said, re.DOTALL)
    assert "--seeds 4" in burnish("reproduce", run.output, "--output", tmp_path / "alone", status=1).out


def test_what_is_no_finished_run_is_refused(tmp_path):
    assert str(tmp_path) in burnish("reproduce", tmp_path, status=2).err
    begun = run_folder(tmp_path / "begun", Story(updates=0, guided=False, images=False)).path
    assert "give a run that is finished" in burnish("reproduce", begun, status=2).message
