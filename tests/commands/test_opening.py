"""A run's folder may come from somebody else: what it would run is said before anything of it is."""

from __future__ import annotations

import pytest

from burnish.commands import opening
from burnish.commands.opening import external_code
from burnish.config import dump, load
from burnish.utils.errors import UserError

FUNCTION = "rewards.mine={name: function, path: 'mine.py:score'}"
SERVER = "rewards.far={name: remote, url: 'http://127.0.0.1:9/', token_variable: TOKEN, weight: 1}"


def test_functions_servers_programs_and_games_are_named():
    config = load(
        "vlm_quickstart", [FUNCTION, SERVER, "environment={name: tools, functions: {add: 'tools.py:add'}}"],
    )  # fmt: skip
    assert external_code(config) == [
        "rewards.mine.path=mine.py:score",
        "rewards.far.url=http://127.0.0.1:9/ (with the token in TOKEN)",
        "environment.functions.add=tools.py:add",
    ]
    game = "environment={name: function, path: 'game.py:Game'}"
    assert external_code(load("vlm_quickstart", [game])) == ["environment.path=game.py:Game"]
    assert external_code(load("quickstart", [FUNCTION])) == ["rewards.mine.path=mine.py:score"]
    assert external_code(load("quickstart")) == []


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A run whose reward is code of its own, in the current folder."""
    (tmp_path / "mine.py").write_text("import pathlib\npathlib.Path('ran').touch()\ndef score(*_): return []\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(dump(load("quickstart", [FUNCTION])))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("samples", [True, False])
def test_it_is_said_before_anything_runs_and_only_where_something_will(foreign, caplog, samples):
    with pytest.raises(UserError, match="no complete checkpoint"):
        opening.open_run("run", samples=samples)
    assert ("run/config.yaml makes this machine use rewards.mine.path=mine.py:score" in caplog.text) == samples
    assert not (foreign / "ran").exists()


def test_a_picture_of_the_command_line_ships_with_burnish_or_is_decoded_before_a_model_is_loaded(tmp_path):
    shipped = opening.given_media("burnish:vlm_quickstart/images/0099.png", "image")
    assert shipped.image().size == (28, 28)
    (tmp_path / "half.png").write_bytes(shipped.read()[:-40])
    for path in (str(tmp_path / "half.png"), "burnish:../../README.md", "nothing.png", ""):
        with pytest.raises(UserError):
            opening.given_media(path, "image")
