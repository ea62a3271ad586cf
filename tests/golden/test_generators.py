"""Every algorithm of diffusion and flow generators trains as it did when its run was recorded."""

from pathlib import Path

import pytest

from burnish.registry import names
from tests.golden.generators import RUNS, SELDOM
from tests.golden.recorded import check
from tests.golden.runs import train
from tests.support.optional import seldom


@pytest.mark.parametrize("name", [*(name for name in RUNS if name not in SELDOM), *seldom(*SELDOM)])
def test_a_run_is_as_it_was(name: str, files: Path) -> None:
    check("generators", name, train(files, "generators", name))


def test_every_algorithm_has_a_run() -> None:
    assert {name.split()[0] for name in RUNS} == set(names("flow algorithm"))
