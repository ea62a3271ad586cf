"""The worked example of docs/python.md, and what may be wrong with rewards and prompts that are Python objects."""

from __future__ import annotations

import functools
import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

import burnish
from burnish.api import Run
from burnish.cli import main
from burnish.rewards.images.function import Function
from burnish.rewards.images.pixels import BorderDarkness
from burnish.utils.errors import ConfigError, UserError
from tests.support import reward_functions
from tests.support.shown import HOLLOW, ROOT


def example() -> str:
    """The example of the page, smaller."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    small = block.replace(
        "steps=3", "steps=1, data={'train_batch_size': 2}, validation={'n': 1, 'reference_guidance': None}"
    )
    assert small != block
    return small


@pytest.mark.slow
def test_the_worked_example_runs_is_resumed_and_is_opened(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    there = {"__name__": "__main__"}
    code = example()
    run_source(code, there)
    run = there["run"]
    said = capsys.readouterr().out
    assert "True runs/dark" in said
    assert not HOLLOW.search(said)
    assert run.finished
    assert run.folder == Path("runs/dark")
    assert run.validation["val-aux/default/dark/mean@1"] > 0
    assert [row["training/global_step"] for row in run.metrics] == [0, 1]
    assert "rewards dark are Python objects of this process" in caplog.text
    before = (run.folder / "metrics.jsonl").read_bytes()
    run_source(code, there)  # nothing is left to do
    assert (run.folder / "metrics.jsonl").read_bytes() == before
    assert main(["report", "runs/dark"]) == 0
    assert main(["eval", "runs/dark"]) == 0  # in the process that has the object
    monkeypatch.setattr("burnish.utils.user_code.GIVEN", {})  # as in any other
    assert main(["eval", "runs/dark"]) == 2
    assert "give it to burnish.load again" in capsys.readouterr().err.replace("\n", " ")


def run_source(code: str, names: dict) -> None:
    """Run it as a notebook would."""
    exec(compile(code, "<notebook>", "exec"), names)


def test_a_function_that_others_can_import_goes_by_its_name(recipe):
    config = burnish.load(recipe, rewards={"mine": reward_functions.brightness})
    assert config.rewards["mine"] == Function(path="tests.support.reward_functions:brightness")
    assert config.scoring.processes == 1


@pytest.mark.parametrize("given", [{"runtime": "ray"}, {"scoring": {"processes": 2}}])
def test_an_object_of_this_process_judges_in_it_alone(given, recipe):
    reward = functools.partial(reward_functions.brightness)
    config = burnish.load(recipe, rewards={"mine": reward})
    assert config.scoring.processes == 0
    assert config.rewards["mine"].path == "object:mine"
    assert config.rewards["mine"].check([]) is None
    sections = {"scoring": given["scoring"]} if "scoring" in given else {}
    overrides = [] if sections else ["runtime=ray"]
    with pytest.raises(
        ConfigError, match=r"rewards.mine is a Python object of this process, which no other process has"
    ):
        burnish.load(recipe, *overrides, rewards={"mine": reward}, **sections)


def test_classes_stand_in_the_place_of_names(recipe):
    config = burnish.load(recipe, rewards={"a": BorderDarkness, "b": {"name": BorderDarkness, "width": 2}})
    assert config.rewards["a"] == BorderDarkness()
    assert config.rewards["b"] == BorderDarkness(width=2)
    assert config.rewards["a"].name == "border_darkness"


def test_prompts_are_written_where_the_run_is(recipe):
    config = burnish.load(recipe, prompts=["a", {"prompt": "b", "answer": "c"}], output_dir="here")
    path = Path(config.data.train_files)
    assert path.parent == Path("here").resolve()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"prompt": "a"}, {"prompt": "b", "answer": "c"}
    ]  # fmt: skip
    other = burnish.load(recipe, prompts=["a"], output_dir="here")
    assert Path(other.data.train_files) != path
    assert path.exists()


@pytest.mark.parametrize(("given", "said"), [
    ({"prompts": []}, r"data.train_files is \[\]; give a list of prompts"),
    ({"prompts": "a cat"}, "data.train_files is 'a cat'; give a list of prompts"),
    ({"prompts": [{"prompt": object()}]}, "which no recipe can hold: object is neither text"),
    ({"rollout": {"n": object()}}, "rollout is .* which no recipe can hold"),
    ({"rolout": {"n": 3}}, "rolout.n is 3, but there is no such option"),
    ({"rewards": {"mine": 3}}, "rewards.mine is 3; it must"),
])  # fmt: skip
def test_what_is_wrong_is_told_as_on_the_command_line(given, said, recipe):
    with pytest.raises(UserError, match=said):
        burnish.load(recipe, **given)


def test_the_package_says_that_it_is_typed():
    assert (files("burnish") / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = burnish.trian


def test_a_run_is_shown_in_a_line_and_in_a_notebook_as_its_report(tmp_path):
    row = {"val-core/x/reward/mean@4": 0.25} | {f"actor/{number}": 1.0 for number in range(500)}
    run = Run(tmp_path, True, [row] * 20)
    assert len(repr(run)) < 300
    assert all(part in repr(run) for part in (str(tmp_path), "finished", "20 updates", "reward/mean@4=0.25"))
    assert str(tmp_path) in run._repr_html_()
    (tmp_path / "report.html").write_text('<p>a "report"</p>')
    assert 'srcdoc="&lt;p&gt;a &quot;report&quot;&lt;/p&gt;"' in run._repr_html_()
