"""Every algorithm trains as it did when its run was recorded."""

from pathlib import Path

import pytest

from burnish.registry import names
from tests.golden.recorded import check
from tests.golden.runs import TABLE, train
from tests.support.optional import seldom


def each(half):
    rare = [name for name, run in TABLE[half].items() if run.get("seldom")]
    return pytest.mark.parametrize("name", [*(name for name in TABLE[half] if name not in rare), *seldom(*rare)])


@each("generators")
def test_a_generator_is_as_it_was(name: str, files: Path) -> None:
    check("generators", name, train(files, "generators", name))


@each("language")
def test_a_language_model_is_as_it_was(name: str, files: Path) -> None:
    check("language", name, train(files, "language", name))


@each("reward_models")
def test_a_reward_model_is_as_it_was(name: str, files: Path) -> None:
    check("reward_models", name, train(files, "reward_models", name))


def test_every_algorithm_has_a_run() -> None:
    assert {name.split()[0] for name in TABLE["generators"]} == set(names("flow algorithm"))
    assert {name.split()[0] for name in TABLE["language"] | TABLE["reward_models"]} == set(names("language algorithm"))
