"""Code of users is opened before anything is checked, by name and by path; what is wrong with it is told."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import burnish as package
from burnish.config import changes, dump
from burnish.config.run_folder import RunFolder, digests
from burnish.registry import KINDS, names
from tests.support.tiny_run import burnish

REWARD = '''\
from burnish import register
from burnish.rewards.base import Reward, Verdict


@register("flow reward", "redness")
class Redness(Reward):
    """How red a picture is."""

    power: float = 1.0
    """What it is raised to."""

    def score(self, images, prompts):
        return [Verdict((image[..., 0].mean() / 255) ** self.power) for image in images]


class Unnamed(Redness):
    """The same, known by its path."""
'''
GIVEN = ["plugins=[mine.py]", "rewards.redness.power=2", "rewards.x.name=mine.py:Unnamed"]


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    for kind in KINDS:
        names(kind)
    for kind, one in KINDS.items():
        monkeypatch.setitem(KINDS, kind, replace(one, entries=dict(one.entries)))


@pytest.fixture
def mine(recipe):
    """A file in the current folder, beside a recipe."""
    path = Path("mine.py").resolve()
    path.write_text(REWARD)
    return path


def test_what_a_plugin_registers_is_an_option_like_ours_from_any_folder(recipe, mine, tmp_path, monkeypatch):
    text = burnish("config", recipe, "plugins=[mine.py]", "rewards.redness.power=2").out
    assert f"plugins: [{mine}]" in text
    assert "# How red a picture is." in text
    assert "# [default 1.0] What it is raised to." in text
    config = package.load(recipe, *GIVEN)
    assert config.rewards["redness"].power == 2
    named = package.load(recipe, "rewards.x.name=mine.py:Redness")
    assert (named.rewards["x"].name, named.plugins) == ("redness", [str(mine)]), "it is known by its name"
    (tmp_path / "config.yaml").write_text(dump(config))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = package.load(str(tmp_path / "config.yaml"))
    assert (again, again.rewards["x"].name) == (config, f"{mine}:Unnamed")


def test_a_package_that_python_finds_and_another_process(recipe, mine, tmp_path, monkeypatch):
    (tmp_path / "pickled").write_bytes(pickle.dumps(package.load(recipe, *GIVEN)))
    code = (
        "import pickle, sys; import burnish.config; from burnish.registry import names\n"
        "config = pickle.load(open('pickled', 'rb'))\n"
        "print(config.rewards['redness'].power, config.rewards['x'].name, 'redness' in names('flow reward'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stdout.split() == ["2.0", f"{mine}:Unnamed", "True"], done.stderr
    del KINDS["flow reward"].entries["redness"]
    (tmp_path / "parts" / "of_mine").mkdir(parents=True)
    (tmp_path / "parts" / "of_mine" / "__init__.py").write_text("from of_mine import reward\n")
    (tmp_path / "parts" / "of_mine" / "reward.py").write_text(REWARD)
    monkeypatch.syspath_prepend(tmp_path / "parts")
    given = ["plugins=[of_mine]", "rewards.redness.power=2", "rewards.x.name=of_mine.reward:Unnamed"]
    config = package.load(recipe, *given)
    assert (config.plugins, config.rewards["x"].name) == (["of_mine"], "of_mine.reward:Unnamed")
    assert "plugins (of_mine)" in digests(config)


NO_NEEDS = "".join(
    f"    def {name}: ...\n" for name in ("credit(self, a)", "micro_batches(self, b, s)", "size(self, b)")
)
OF_ANOTHER_TASK = (
    "from burnish.algorithms.base import Algorithm\nfrom burnish.algorithms.language.base import LanguageNeeds\n\n\n"
    "class Mine(Algorithm):\n    def needs(self): return LanguageNeeds()\n    def loss(self, p, r): ...\n" + NO_NEEDS
)
WRONG = {  # options, what stands in raises.py, and what is told
    "no such file": ("plugins=[absent.py]", "", ["plugins[0] is absent.py"]),
    "no such package": ("plugins=[no_such_package]", "", ["plugins[0] is no_such_package"]),
    "raises": ("plugins=[mine.py,raises.py]", "import os\nraise RuntimeError('no')\n",
               ["plugins[1] is raises.py", "RuntimeError: no", "raises.py:2"]),
    "is no Python": ("plugins=[raises.py]", "x = (\n", ["SyntaxError", "line 1"]),
    "exits": ("plugins=[raises.py]", "exit(3)\n", ["SystemExit: 3"]),
    "a name of ours": ("plugins=[raises.py]", REWARD.replace("redness", "ocr"), ["'ocr'", "raises.py:"]),
    "a name twice": ("plugins=[mine.py,raises.py]", REWARD, ["'redness'", "raises.py:", "mine.py:"]),
    "no method": ("plugins=[raises.py]", REWARD.replace("def score(self, images, prompts)", "def judge(self, images)"),
                  ["'redness'", "score(self, images, prompts)", "raises.py:"]),
    "text": ("plugins=mine.py", "", ["plugins is mine.py"]), "null": ("plugins=null", "", ["plugins is null"]),
    "no path": ('plugins=["\\0.py"]', "", ["plugins[0]", "null byte"]),
    "no such class": ("rewards.x.name=mine.py:Absent", "", ["rewards.x.name", "Absent"]),
    "no such file of a class": ("rewards.x.name=absent.py:X", "", ["rewards.x.name", "absent.py"]),
    "no algorithm": ("algorithm=mine.py:Redness", "", ["algorithm.name", "burnish.algorithms.base"]),
    "of another task": ("algorithm=raises.py:Mine", OF_ANOTHER_TASK,
                        ["raises.py:Mine", "LanguageNeeds", "text-to-image"]),
    "a typo": ("plugins=[mine.py] rewards.redness.powr=2", "", ["rewards.redness.powr is 2", "rewards.redness.power"]),
    "a type": ("plugins=[mine.py] rewards.redness.power=x", "", ["redness.power is x"]),
    "a typo in the name": ("plugins=[mine.py] rewards.rednes.power=2", "", ["rewards.rednes", "redness"]),
}  # fmt: skip


@pytest.mark.parametrize(("options", "text", "words"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_with_code_of_users_is_told_with_its_line(options, text, words, recipe, mine):
    Path("raises.py").write_text(text)
    with pytest.raises(ValueError, match=r".") as caught:
        package.load(recipe, *options.split(" "))
    assert [word for word in words if word not in str(caught.value)] == [], caught.value
    assert "\n" not in str(caught.value)


def test_a_plugin_that_moved_is_the_same_run_and_one_that_changed_is_noticed(recipe, mine):
    config = package.load(recipe, *GIVEN)
    folder = RunFolder(config.output_dir)
    folder.begin(config, resumed_at=None)
    Path("moved").mkdir()
    moved = mine.rename("moved/mine.py")
    del KINDS["flow reward"].entries["redness"]  # as in another process
    later = package.load(recipe, f"plugins=[{moved}]", GIVEN[1], f"rewards.x.name={moved}:Unnamed")
    assert [line.partition(":")[0] for line in changes(config, later)] == ["plugins"]
    assert digests(later) == json.loads(folder.code.read_text())
    moved.write_text(REWARD + "\n")
    assert digests(later).keys() >= {"plugins (mine.py)", "rewards.x.name (mine.py:Unnamed)"}
    assert digests(later) != json.loads(folder.code.read_text())


def test_a_report_runs_no_code_of_a_folder_and_sampling_says_first_what_it_would_run(recipe, mine, caplog, monkeypatch):
    config = package.load(recipe, "plugins=[mine.py]", "rewards.redness.power=2", "rewards.mine.path=mine.py:score",
                          "rewards.mine.name=function",
                          "rewards.far={name: remote, url: 'http://127.0.0.1:9/', token_variable: TOKEN}")  # fmt: skip
    folder = RunFolder(config.output_dir)
    folder.begin(config, resumed_at=None)
    folder.metrics.write_text("")
    mine.write_text("import pathlib\npathlib.Path('ran').touch()\nraise RuntimeError('no')\n")
    for name in [name for name in sys.modules if name.startswith("burnish_file:")]:
        monkeypatch.delitem(sys.modules, name)
    burnish("report", folder.path)
    assert not Path("ran").exists()
    assert "RuntimeError: no" in burnish("eval", folder.path, status=2).message
    assert f"plugins[0]={mine}" in caplog.text
    given = ["rewards.mine={name: function, path: 'mine.py:score'}", "environment={name: function, path: 'g.py:Game'}"]
    Path("other").mkdir()
    Path("other/config.yaml").write_text(dump(package.load("vlm_quickstart", *given)))
    Path("ran").unlink()
    for command, warns in ((["sample", "other", "a"], True), (["export", "other", "-o", "x"], False)):
        caplog.clear()
        burnish(*command, status=2)
        for words in ("rewards.mine.path=mine.py:score", "environment.path=g.py:Game"):
            assert (words in caplog.text) == warns
        assert not Path("ran").exists()
