"""Every algorithm trains as it did when its run was recorded."""

from pathlib import Path

import pytest

from burnish.registry import names
from tests.golden import generators, language
from tests.golden.recorded import check
from tests.golden.runs import train
from tests.support.optional import seldom


def each(half):
    often = (name for name in half.RUNS if name not in half.SELDOM)
    return pytest.mark.parametrize("name", [*often, *seldom(*half.SELDOM)])


@each(generators)
def test_a_generator_is_as_it_was(name: str, files: Path) -> None:
    check("generators", name, train(files, "generators", name))


@each(language)
def test_a_language_model_is_as_it_was(name: str, files: Path) -> None:
    check("language", name, train(files, "language", name))


@pytest.mark.parametrize("name", language.REWARD_MODELS)
def test_a_reward_model_is_as_it_was(name: str, files: Path) -> None:
    check("reward_models", name, train(files, "reward_models", name))


def test_every_algorithm_has_a_run() -> None:
    assert {name.split()[0] for name in generators.RUNS} == set(names("flow algorithm"))
    assert {name.split()[0] for name in language.RUNS | language.REWARD_MODELS} == set(names("language algorithm"))
