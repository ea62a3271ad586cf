"""Every algorithm of language models trains as it did when its run was recorded."""

from pathlib import Path

import pytest

from burnish.registry import names
from tests.golden.language import REWARD_MODELS, RUNS, SELDOM
from tests.golden.recorded import check
from tests.golden.runs import train
from tests.support.optional import seldom


@pytest.mark.parametrize("name", [*(name for name in RUNS if name not in SELDOM), *seldom(*SELDOM)])
def test_a_run_is_as_it_was(name: str, files: Path) -> None:
    check("language", name, train(files, "language", name))


@pytest.mark.parametrize("name", REWARD_MODELS)
def test_a_reward_model_is_as_it_was(name: str, files: Path) -> None:
    check("reward_models", name, train(files, "reward_models", name))


def test_every_algorithm_has_a_run() -> None:
    assert {name.split()[0] for name in RUNS | REWARD_MODELS} == set(names("language algorithm"))
