"""Burnish from Python: objects in the place of options, and parts of one's own, which are held to a contract."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import burnish
from burnish import registry
from burnish.registry import known, lookup, names, register
from burnish.rewards.base import Reward, Score
from burnish.rl.algorithm import Algorithm
from tests.support import named_rewards
from tests.support.shown import HOLLOW, ROOT, blocks
from tests.support.tiny_run import burnish as run


@pytest.mark.thorough
@pytest.mark.slow
def test_the_example_of_the_page_runs_is_resumed_and_is_opened(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in blocks(ROOT / "docs" / "install.md") if block.kind == "python")
    small = "steps=1, data={'train_batch_size': 2}, validation={'n': 1, 'max_prompts': 4, 'reference_guidance': None}"
    assert "steps=3" in block.text
    code = compile(block.text.replace("steps=3", small), "<notebook>", "exec")
    there: dict[str, Any] = {"__name__": "__main__"}
    exec(code, there)
    said = capsys.readouterr().out
    assert "True runs/dark" in said
    assert not HOLLOW.search(said)
    made = there["run"]
    assert (made.finished, made.folder) == (True, Path("runs/dark"))
    assert made.validation["val-aux/default/dark/mean@1"] > 0
    assert [row["training/global_step"] for row in made.metrics] == [0, 1]
    before = (made.folder / "metrics.jsonl").read_bytes()
    exec(code, there)  # nothing is left to do
    assert (made.folder / "metrics.jsonl").read_bytes() == before
    run("report", "runs/dark")
    assert "srcdoc=" in made._repr_html_()
    for word in (str(made.folder), "finished"):
        assert word in repr(made)
    alone, environment = [sys.executable, "-m", "burnish", "eval", "runs/dark"], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(alone, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 2
    assert "burnish.load" in done.stderr
    assert "Traceback" not in done.stderr


class Mine(Reward):
    """Mine."""

    width: int = 1
    """Pixels."""

    def score(self, images, prompts):
        return [Score(0.0) for _ in images]


def test_functions_and_classes_stand_in_the_place_of_names(recipe):
    register("flow reward", "mine")(Mine)
    given = {"a": Mine, "b": {"name": Mine, "width": 2}, "c": named_rewards.brightness}
    config = burnish.load(recipe, rewards=given)
    assert (config.rewards["a"], config.rewards["b"]) == (Mine(), Mine(width=2))
    assert config.rewards["c"].path == "tests.support.named_rewards:brightness"
    assert config.scoring.processes == 1


@pytest.mark.parametrize(("overrides", "given"), [(["runtime=ray"], {}), ([], {"scoring": {"processes": 2}})])
def test_an_object_of_this_process_judges_in_it_alone(overrides, given, recipe):
    reward = functools.partial(named_rewards.brightness)
    config = burnish.load(recipe, rewards={"mine": reward})
    assert (config.scoring.processes, config.rewards["mine"].path) == (0, "object:mine")
    assert config.rewards["mine"].check([]) is None
    with pytest.raises(ValueError, match=r"rewards\.mine"):
        burnish.load(recipe, *overrides, rewards={"mine": reward}, **given)


@pytest.mark.parametrize(("given", "said"), [
    ({"prompts": "a cat"}, "data.train_files is 'a cat'"),
    ({"prompts": [{"prompt": object()}]}, "object is neither text"), ({"rolout": {"n": 3}}, "rolout.n is 3"),
    ({"rewards": {"mine": 3}}, "rewards.mine is 3"),
])  # fmt: skip
def test_what_is_wrong_is_told_as_on_the_command_line(given, said, recipe):
    with pytest.raises(ValueError, match=said):
        burnish.load(recipe, **given)


@pytest.mark.parametrize(("kind", "bases", "body", "said"), [
    ("flow reward", [], {}, "burnish.rewards.base.Reward"),
    ("flow reward", [Reward], {"score": lambda self, images: []}, r"has score\(self, images\), but is called as"),
    ("flow algorithm", [Algorithm], {"needs": lambda self: None}, "compute_advantages"),
    ("flow algorithm", ["language algorithm", "grpo"], {}, "is of kind language algorithm"),
    ("flow model", [], {}, r"pipeline_class: ClassVar.*; has no method .*; see .*FlowModel"),
])  # fmt: skip
def test_what_a_kind_demands_is_checked_when_a_class_is_registered(kind, bases, body, said):
    derived = (lookup(*bases),) if len(bases) == 2 else tuple(bases)
    cls = type("Mine", derived, {"__module__": __name__, **body})
    with pytest.raises(ValueError, match=rf"^{kind} 'mine' \(.*Mine.*\) .*{said}"):
        register(kind, "mine")(cls)
    assert not known(kind, "mine")


@pytest.mark.parametrize(("kind", "function", "said"), [
    ("advantage", lambda: None, r"function\(\)"), ("flow reward", lambda images, prompts: [], "is not a class"),
    ("algorithm", lambda rewards: rewards, "kinds are flow algorithm"),
])  # fmt: skip
def test_a_function_is_held_to_its_contract_too(kind, function, said):
    with pytest.raises(ValueError, match=said):
        register(kind, "short")(function)


def test_plugins_of_installed_packages_are_opened_when_a_name_is_unknown(tmp_path, monkeypatch):
    package = tmp_path / "burnish_demo-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: burnish-demo\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[burnish.plugins]\ndemo = burnish_demo_module\n")
    (tmp_path / "burnish_demo_module.py").write_text(
        "from burnish import register\nfrom burnish.rewards.base import Reward, Score\n\n\n"
        "@register('flow reward', 'demo')\nclass Demo(Reward):\n    def score(self, images, prompts):\n"
        "        return [Score(0.0) for _ in images]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry.open_entry_points.cache_clear()
    assert "demo" not in names("flow reward")
    assert lookup("flow reward", "demo").__module__ == "burnish_demo_module"
    assert registry.open_entry_points()["demo"] == "burnish_demo_module"
    (package / "entry_points.txt").write_text("[burnish.plugins]\ndemo = burnish_demo_nowhere\n")
    registry.open_entry_points.cache_clear()
    with pytest.raises(ValueError, match=r"plugin demo of the installed package burnish-demo"):
        lookup("flow reward", "other")
    registry.open_entry_points.cache_clear()
    sys.modules.pop("burnish_demo_module", None)
