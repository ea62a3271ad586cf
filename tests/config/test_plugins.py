"""Code of users is opened before anything is checked, by name and by path, and what is wrong with it is told."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from burnish.commands.opening import open_run
from burnish.config import changes, describe, dump, load
from burnish.config.run_folder import RunFolder, digests
from burnish.registry import KINDS, names
from burnish.report import write_report
from burnish.utils.errors import ConfigError, UserError

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


def test_what_a_plugin_registers_is_an_option_like_ours(recipe, mine):
    config = load(recipe, ["plugins=[mine.py]", "rewards.redness.power=2"])
    assert config.rewards["redness"].power == 2
    text = describe(config, "")
    assert f"plugins: [{mine}]" in text
    assert "# How red a picture is." in text
    assert "# [default 1.0] What it is raised to." in text
    with pytest.raises(ConfigError, match=r"rewards.redness.powr is 2, .* did you mean rewards.redness.power\?"):
        load(recipe, ["plugins=[mine.py]", "rewards.redness.powr=2"])
    with pytest.raises(ConfigError, match=r"redness.power is x; it must be a number"):
        load(recipe, ["plugins=[mine.py]", "rewards.redness.power=x"])
    with pytest.raises(ConfigError, match=r"rewards.rednes is not known; did you mean redness\?"):
        load(recipe, ["plugins=[mine.py]", "rewards.rednes.power=2"])


def test_config_yaml_finds_it_from_another_folder(recipe, mine, tmp_path, monkeypatch):
    config = load(recipe, ["plugins=[mine.py]", "rewards.redness.power=2", "rewards.x.name=mine.py:Unnamed"])
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(config))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = load(str(saved))
    assert again == config
    assert again.rewards["x"].name == f"{mine}:Unnamed"


def test_a_class_with_a_name_is_known_by_it_however_it_is_given(recipe, mine):
    config = load(recipe, ["rewards.x.name=mine.py:Redness"])
    assert config.rewards["x"].name == "redness"
    assert config.plugins == [str(mine)]


def test_a_package_that_python_finds(recipe, tmp_path, monkeypatch):
    (tmp_path / "parts" / "of_mine").mkdir(parents=True)
    (tmp_path / "parts" / "of_mine" / "__init__.py").write_text("from of_mine import reward\n")
    (tmp_path / "parts" / "of_mine" / "reward.py").write_text(REWARD)
    monkeypatch.syspath_prepend(tmp_path / "parts")
    config = load(recipe, ["plugins=[of_mine]", "rewards.redness.power=2", "rewards.x.name=of_mine.reward:Unnamed"])
    assert config.plugins == ["of_mine"]
    assert config.rewards["x"].name == "of_mine.reward:Unnamed"
    assert "plugins (of_mine)" in digests(config)


def test_another_process_that_gets_a_configuration_has_its_plugins(recipe, mine, tmp_path):
    config = load(recipe, ["plugins=[mine.py]", "rewards.redness.power=2", "rewards.x.name=mine.py:Unnamed"])
    (tmp_path / "pickled").write_bytes(pickle.dumps(config))
    code = (
        "import pickle, sys; import burnish.config; from burnish.registry import names\n"
        "config = pickle.load(open('pickled', 'rb'))\n"
        "print(config.rewards['redness'].power, config.rewards['x'].name, 'redness' in names('flow reward'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stdout.split() == ["2.0", f"{mine}:Unnamed", "True"], done.stderr


@pytest.mark.parametrize(("plugins", "text", "said"), [
    ("[absent.py]", None, r"plugins\[0\] is absent.py, but there is no such file \(looked for .*absent.py\); give its"),
    ("[no_such_package]", None, r"plugins\[0\] is no_such_package, which Python does not find; install it, start with"),
    ("[mine.py,raises.py]", "import os\nraise RuntimeError('no')\n",
     r"plugins\[1\] is raises.py, which fails to import: RuntimeError: no \(.*raises.py:2, in <module>\); mend it"),
    ("[raises.py]", "x = (\n", r"SyntaxError: .*line 1"),
    ("[raises.py]", "exit(3)\n", "SystemExit: 3"),
    ("[raises.py]", REWARD.replace("redness", "ocr"), r"flow reward 'ocr' \(Redness, .*raises.py:\d+\) is registered"),
    ("[mine.py,raises.py]", REWARD, r"'redness' .*raises.py:\d+\) is registered already, by Redness, .*mine.py:\d+"),
    ("[raises.py]", REWARD.replace("def score(self, images, prompts)", "def judge(self, images)"),
     r"'redness' .* has no method score\(self, images, prompts\): score pictures; .*raises.py:\d+, in <module>\)"),
    ("mine.py", None, r"plugins is mine.py; it must be a list, as in \[my_package,path/to/file.py\]"),
    ("null", None, "plugins is null; it must be a list"),
    ('["\\0.py"]', None, r"plugins\[0\] is .*which is no path: embedded null byte"),
])  # fmt: skip
def test_what_is_wrong_with_a_plugin_is_told_with_its_line(plugins, text, said, recipe, mine):
    if text is not None:
        Path("raises.py").write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        load(recipe, [f"plugins={plugins}"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("given", "said"), [
    ("rewards.x.name=mine.py:Absent", "rewards.x.name: path of flow reward is .*:Absent', but Absent has no such name"),
    ("rewards.x.name=absent.py:X", "rewards.x.name: .* FileNotFoundError: there is no file .*absent.py"),
    ("algorithm=mine.py:Redness", "algorithm.name: flow algorithm .* does not derive from burnish.algorithms.base"),
])  # fmt: skip
def test_what_is_wrong_with_a_path_is_told_with_its_option(given, said, recipe, mine):
    with pytest.raises(ConfigError, match=said):
        load(recipe, [given])


def test_an_algorithm_that_needs_what_another_task_has_is_refused(recipe):
    bodies = "".join(
        f"    def {name}: ...\n" for name in ("credit(self, a)", "micro_batches(self, b, s)", "size(self, b)")
    )
    Path("mine.py").write_text(
        "from burnish.algorithms.base import Algorithm\n"
        "from burnish.algorithms.language.base import LanguageNeeds\n\n\n"
        f"class Mine(Algorithm):\n    def needs(self): return LanguageNeeds()\n    def loss(self, p, r): ...\n{bodies}"
    )
    said = r"mine.py:Mine, whose needs\(\) gives LanguageNeeds, but the algorithms of task text-to-image give .*Needs;"
    with pytest.raises(ConfigError, match=said):
        load(recipe, ["algorithm=mine.py:Mine"])


def test_a_plugin_that_moved_is_the_same_run_and_one_that_changed_is_noticed(recipe, mine):
    options = ["rewards.redness.power=2", "rewards.x.name={}:Unnamed"]
    config = load(recipe, ["plugins=[mine.py]", options[0], options[1].format("mine.py")])
    RunFolder(config.output_dir).begin(config, resumed_at=None)
    Path("moved").mkdir()
    moved = mine.rename("moved/mine.py")
    del KINDS["flow reward"].entries["redness"]  # as in another process
    later = load(recipe, [f"plugins=[{moved}]", options[0], options[1].format(moved)])
    assert [line.partition(":")[0] for line in changes(config, later)] == ["plugins"]
    assert digests(later) == json.loads(RunFolder(config.output_dir).code.read_text())
    moved.write_text(REWARD + "\n")
    assert digests(later).keys() == digests(config).keys() | {"plugins (mine.py)", "rewards.x.name (mine.py:Unnamed)"}
    assert digests(later) != json.loads(RunFolder(config.output_dir).code.read_text())


def test_a_report_runs_no_plugin_and_judging_says_so_first(recipe, mine, caplog, monkeypatch):
    config = load(recipe, ["plugins=[mine.py]", "rewards.redness.power=2"])
    folder = RunFolder(config.output_dir)
    folder.begin(config, resumed_at=None)
    folder.metrics.write_text("")
    mine.write_text("import pathlib\npathlib.Path('ran').touch()\nraise RuntimeError('no')\n")
    for name in [name for name in sys.modules if name.startswith("burnish_file:")]:
        monkeypatch.delitem(sys.modules, name)
    write_report(folder)
    assert not Path("ran").exists()
    with pytest.raises(UserError, match="fails to import"):
        open_run(config.output_dir)
    assert f"executes plugins[0]={mine} on this machine; check it first if the run is not yours" in caplog.text
