"""Every hostile input is answered well: a sample of each kind on every change, all of them thoroughly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.kinds import KINDS, every_case, sample

ROOT = Path(__file__).parents[2]
AT_LEAST = 300  # inputs in all


def tried(folder: Path, *options: str) -> dict[str, list[str]]:
    """Bad answers by kind, in the words of the command that is documented."""
    log = folder / "answers.jsonl"
    command = [sys.executable, "-m", "tests.hostile", *options, "--json", str(log)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    assert lines, done.stderr
    for line in lines:
        if line["bad"]:
            found[line["case"].partition(": ")[0]].append(f"{line['case']}: {line['bad']}\n{line['said'][-1500:]}")
    assert done.returncode == int(any(found.values())), done.stderr
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, list[str]]:
    return tried(tmp_path_factory.mktemp("hostile"), "--sample")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_every_kind_is_answered_well(answers, kind):
    assert not answers[kind], "\n\n".join(answers[kind])


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_answered_well(tmp_path, kind):
    bad = tried(tmp_path, "--kind", kind)[kind]
    assert not bad, "\n\n".join(bad)


def test_there_are_many_and_no_two_are_called_the_same():
    cases = every_case()
    assert len(cases) >= AT_LEAST
    assert len({case.id for case in cases}) == len(cases)
    assert {case.kind for case in cases} == set(KINDS)


def test_the_sample_is_always_the_same_and_has_some_of_every_kind():
    assert [case.id for case in sample(0)] == [case.id for case in sample(0)]
    assert {case.kind for case in sample(0)} == set(KINDS)
