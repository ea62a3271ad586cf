"""Algorithms that train generators run on a pretended GPU in float32 and bfloat16: some each time, all in thorough."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.registry import names
from tests.support.pretend_flow import CASES, WAITS, options
from tests.support.pretend_runs import cells, check

pytestmark = pytest.mark.slow


# each time; all where there is time
OFTEN = {"flow_grpo", "branch_grpo extreme", "diffusion_nft any pipeline", "crd reference", "draft"}


@pytest.mark.parametrize(("name", "precision"), cells(CASES, CASES.keys() - OFTEN, both=("flow_grpo",)))
def test_a_run(name: str, precision: str, flow_folder: Path) -> None:
    recipe, given = options(flow_folder, name)
    check(recipe, given, precision, waits=WAITS.get(name, 0), beside_cpu=" " not in name)


def test_every_algorithm_is_among_them() -> None:
    assert {name.split()[0] for name in CASES} == set(names("flow algorithm"))
