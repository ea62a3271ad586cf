"""Environments in a configuration: what is read, written and refused."""

import pytest

from burnish.config import load
from burnish.config.text import dump, to_dict
from burnish.environments.function import FunctionEnvironment
from burnish.tasks import assemble
from burnish.utils.errors import ConfigError, UserError

GAME = [
    "environment.name=function", "environment.path=tests.support.games:Show", "rewards.environment.weight=1",
    "environment.arguments={opening: true, pictures: true, fails: '', turns: 2}", "rewards.exact=null",
]  # fmt: skip


def test_what_is_written_is_read_again(tmp_path):
    config = load("vlm_quickstart", [*GAME, "environment.max_turns=3"])
    assert isinstance(config.environment, FunctionEnvironment)
    assert to_dict(config)["environment"]["name"] == "function"
    file = tmp_path / "config.yaml"
    file.write_text(dump(config))
    again = load(str(file))
    assert again == config
    assert load(str(file), ["environment=null", "rewards.environment=null"]).environment is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["rewards.environment.weight=1"],
            "rewards.environment is the environment's reward, but there is no environment",
        ),
        ([*GAME, "algorithm=dpo", "algorithm.online=false"], "dpo learns from given responses"),
        ([*GAME, "environment.max_length=5"], "environment.max_length is 5.*rollout.max_new_tokens=12"),
        ([*GAME, "environment.turns=5"], "environment.turns is 5.*did you mean environment.max_turns"),
        (["environment.max_turns=5"], "environment.name=NAME"),
        (["environment.name=fuction"], "environment.name is fuction.*did you mean function"),
        (["environment.name=function"], "environment.path is required: where it is"),
        (["environment=tools"], "environment is tools; it must contain options, as in environment.name="),
        ([*GAME, "environment.max_turns=0"], "environment.max_turns is 0; it must be >= 1"),
    ],
)
def test_contradictions_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        load("vlm_quickstart", overrides)


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("nowhere:Game", {}, "path of environment is 'nowhere:Game'"),
        ("tests.support.games:Nothing", {}, "has no such name"),
        ("tests.support.games:Show", {"size": 3}, "can't be created with environment.arguments .*TypeError"),
        ("tests.support.games:prompts", {}, "no method reset and no step"),
    ],
)
def test_what_is_no_environment_is_refused_before_weights_load(path, arguments, message):
    shown = "{" + ", ".join(f"{name}: {value}" for name, value in arguments.items()) + "}"
    overrides = ["environment.name=function", f"environment.path={path}", f"environment.arguments={shown}"]
    assembly = assemble(load("vlm_quickstart", overrides))
    with pytest.raises(UserError, match=message):
        assembly.check_data()
    assert "roles" not in vars(assembly)
