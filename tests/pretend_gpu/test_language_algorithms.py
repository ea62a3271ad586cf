"""Language models are trained on a pretended GPU in float32 and bfloat16: some runs each time, all in thorough."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.registry import names
from tests.support.pretend_language import CASES, options
from tests.support.pretend_runs import cells, check

pytestmark = pytest.mark.slow


# each time; all where there is time
OFTEN = {"grpo", "grpo filters", "grpo own game", "ppo", "dpo given"}


@pytest.mark.parametrize(("name", "precision"), cells(CASES, CASES.keys() - OFTEN, both=("ppo",)))
def test_a_run(name: str, precision: str, language_folder: Path) -> None:
    recipe, given = options(language_folder, name)
    check(recipe, given, precision, beside_cpu=" " not in name)


def test_every_algorithm_is_among_them() -> None:
    assert {name.split()[0] for name in CASES} == set(names("language algorithm"))
