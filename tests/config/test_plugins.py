"""Code of users is opened before anything is checked, by name and by path; what is wrong with it is told."""

import sys
from pathlib import Path

import pytest
import yaml

import burnish as package
from tests.support.tiny_run import burnish

TABLE = yaml.safe_load(Path(__file__).with_name("wrong_code.yaml").read_text())
REWARD, WRONG = TABLE["reward"], TABLE["wrong"]
GIVEN = ["plugins=[mine.py]", "rewards.redness.power=2", "rewards.x.name=mine.py:Unnamed"]


@pytest.fixture
def mine(recipe):
    """A file in the current folder, beside a recipe."""
    path = Path("mine.py").resolve()
    path.write_text(REWARD)
    return path


def test_what_a_plugin_registers_is_an_option_like_ours_from_any_folder(recipe, mine, tmp_path, monkeypatch):
    text = burnish("config", recipe, *GIVEN).out
    for words in (f"plugins: [{mine}]", "# How red a picture is.", "# [default 1.0] What it is raised to."):
        assert words in text
    config = package.load(recipe, *GIVEN)
    assert config.rewards["redness"].power == 2
    named = package.load(recipe, "rewards.x.name=mine.py:Redness")
    assert (named.rewards["x"].name, named.plugins) == ("redness", [str(mine)]), "it is known by its name"
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = package.load(str(tmp_path / "config.yaml"))
    assert (again, again.rewards["x"].name) == (config, f"{mine}:Unnamed")


@pytest.mark.parametrize(("options", "text", "words"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_with_code_of_users_is_told_with_its_line(options, text, words, recipe, mine):
    Path("raises.py").write_text(text)
    with pytest.raises(ValueError, match=r".") as caught:
        package.load(recipe, *options.split(" "))
    assert [word for word in words if word not in str(caught.value)] == [], caught.value
    assert "\n" not in str(caught.value)


def test_a_report_runs_no_code_of_a_folder_and_sampling_says_first_what_it_would_run(recipe, mine, caplog, monkeypatch):
    given = ["plugins=[mine.py]", "rewards.redness.power=2", "rewards.mine={name: function, path: 'mine.py:score'}"]
    for folder, config in (("own", [recipe, *given]), ("other", ["vlm_quickstart", given[2]])):
        Path(folder).mkdir()
        text = burnish("config", *config).out.replace("environment: null", "extends: more.yaml")
        Path(folder, "config.yaml").write_text(text)
        Path(folder, "more.yaml").write_text("environment: {name: agent, command: [sh, agent.sh]}\n")
        Path(folder, "metrics.jsonl").touch()
    mine.write_text("import pathlib\npathlib.Path('ran').touch()\nraise RuntimeError('no')\n")
    for name in [name for name in sys.modules if name.startswith("burnish_file:")]:
        monkeypatch.delitem(sys.modules, name)
    burnish("report", "own")
    assert not Path("ran").exists()
    assert "RuntimeError: no" in burnish("eval", "own", status=2).message
    assert f"plugins.0={mine}" in caplog.text
    Path("ran").unlink()
    for command in (["sample", "other", "a"], ["export", "other", "-o", "x"]):
        caplog.clear()
        burnish(*command, status=2)
        for words in ("rewards.mine.path=mine.py:score", "environment.command.1=agent.sh"):
            assert words in caplog.text
        assert not Path("ran").exists()
