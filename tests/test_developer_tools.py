"""Tools that compare commits: what they call equal, which runs they know, and what they count."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from burnish.config import load
from burnish.registry import names
from tests.support.time_columns import is_time_column

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import reading_distance
import same_numbers
import same_numbers_runs


def write(folder: Path, *rows: dict[str, float | None]) -> Path:
    folder.mkdir(parents=True)
    lines = [json.dumps({same_numbers.STEP: update} | row) + "\n" for update, row in enumerate(rows)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def test_runs_that_differ_in_time_alone_are_equal(tmp_path):
    one = write(tmp_path / "one", {"actor/loss": 0.1, "perf/time": 1.0}, {"actor/loss": None})
    two = write(tmp_path / "two", {"actor/loss": 0.1, "perf/time": 2.0}, {"actor/loss": None, "timing_s/gen": 1.0})
    assert same_numbers.report(one, two, everything=True) == same_numbers.EQUAL


def test_every_other_difference_is_told_with_its_update(tmp_path, monkeypatch):
    one = write(tmp_path / "one", {"actor/loss": 0.0, "old": 1.0}, {"actor/loss": 1.0}, {})
    two = write(tmp_path / "two", {"actor/loss": -0.0, "new": 2.0}, {"actor/loss": 1.0 + 2**-52})
    assert same_numbers.report(one, two, everything=True).splitlines() == [
        "differs",
        "  update 0: actor/loss 0.0 -> -0.0",
        "  update 0: old is only before (1.0)",
        "  update 0: new is only after (2.0)",
        "  update 1: actor/loss 1.0 -> 1.0000000000000002 (by 2.2e-16, 2.2e-16 of it)",
        "  update 2 is only before",
    ]
    monkeypatch.setattr(same_numbers, "SHOWN", 2)
    assert same_numbers.report(one, two, everything=False).splitlines()[2:] == [
        "  update 0: old is only before (1.0)", "  and 3 more",
    ]  # fmt: skip


def test_time_columns_are_those_of_the_package():
    assert all(map(is_time_column, same_numbers.TIME_COLUMNS))
    assert not any(name.startswith(same_numbers.TIME_COLUMNS) for name in ("actor/loss", "pipeline/staleness/max"))


def test_a_run_is_cut_off_behind_the_checkpoint_that_is_kept(tmp_path):
    run = write(tmp_path / "run", {}, {}, {}, {})
    (run / "config.yaml").write_text("steps: 3\n")
    for update in (2, 3):
        (run / f"checkpoints/{update:08d}").mkdir(parents=True)
    for update in (0, 3):
        (run / f"validation/{update:06d}").mkdir(parents=True)
    same_numbers.cut_off(run, tmp_path / "cut")
    left = sorted(str(path.relative_to(tmp_path / "cut")) for path in (tmp_path / "cut").rglob("*"))
    assert left == [
        "checkpoints", "checkpoints/00000002", "config.yaml", "metrics.jsonl", "validation", "validation/000000",
    ]  # fmt: skip
    assert list(same_numbers.read(tmp_path / "cut")) == [0, 1, 2]


def test_every_algorithm_is_among_the_runs():
    given = [options for name, options in same_numbers_runs.runs().items() if not name.startswith("ray-")]
    for recipe, kind in (("quickstart", "flow algorithm"), ("vlm_quickstart", "language algorithm")):
        named = [option.partition("=")[2] for options in given if options[0] == recipe for option in options[1:2]]
        assert set(named) >= set(names(kind))


def test_the_options_of_every_run_are_accepted(tmp_path):
    same_numbers_runs.write_files(tmp_path, Path(__file__).parents[1] / same_numbers.PICTURES)
    for recipe, *options in same_numbers_runs.runs().values():
        config = load(recipe, [option.replace(same_numbers_runs.FILES, str(tmp_path)) for option in options])
        assert config.steps == same_numbers_runs.UPDATES


PACKAGE = {
    "loop": "def run(hook):\n    from walked.losses.policy import loss\n    loss()\n    hook()\n",
    "losses/policy": "def loss():\n    from walked.losses.some_metrics import told\n    told()\n",
    "losses/some_metrics": "def told():\n    pass\n",
    "losses/other": "def unused():\n    pass\n",
    "hooks/saving": "from walked.losses.other import unused\nclass Hook:\n    def __call__(self):\n        unused()\n",
    "elsewhere": "def sample():\n    pass\n",
}


def test_a_step_enters_what_it_calls_and_no_hook(tmp_path, monkeypatch):
    for name, text in PACKAGE.items():
        file = tmp_path / "walked" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    loop, saving = (importlib.import_module(f"walked.{name}") for name in ("loop", "hooks.saving"))
    trace = reading_distance.Trace(tmp_path / "walked")
    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        loop.run(saving.Hook())
        importlib.import_module("walked.elsewhere").sample()
    finally:
        sys.setprofile(before)
    assert trace.step == {
        "loop.py": {"run"}, "losses/policy.py": {"loss"}, "losses/some_metrics.py": {"told"},
    }  # fmt: skip
    assert trace.anywhere.keys() - trace.step.keys() == {"losses/other.py", "hooks/saving.py", "elsewhere.py"}
    assert reading_distance.part_of("losses/policy.py") == "losses"
    assert reading_distance.part_of("losses/some_metrics.py") is None
    assert trace.lines(["losses/policy.py", "losses/other.py"]) == 5
    with pytest.raises(SystemExit, match="called no method `loss`"):
        trace.bases()
