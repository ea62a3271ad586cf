"""Recipes of real sizes fit the hardware that they state, by forecast: nothing here needs a weight or a GPU.

Limits count what a GPU must have: the peak, fragments, CUDA, and the networks of rewards beside it.
"""

import re
from pathlib import Path

import pytest
import yaml

from burnish.config import load
from burnish.config.batches import smallest, written
from tests.plan.plans import plan
from tools import hardware_table as table

thorough = pytest.mark.thorough
# what follows the gradient of a network asks for its files, which are not here: the small network of ocr_ctc instead
NO_NETWORK = {"flux/srpo": ["rewards.hpsv2=null", "rewards.ocr_ctc.weight=1", "rewards.watched_pickscore=null"]}
SIZES = yaml.safe_load(Path(__file__).with_name("real_sizes.yaml").read_text())


@pytest.fixture(autouse=True)
def functions(tmp_path, monkeypatch):
    """What some recipes leave to the user."""
    (tmp_path / "rewards.py").write_text(table.REWARDS)
    monkeypatch.chdir(tmp_path)


@thorough
@pytest.mark.parametrize("name", SIZES)
def test_a_model_of_real_size_fits(name):
    recipe, *options = SIZES[name]
    found = plan(recipe, *options)
    assert "It fits" in found.said
    if name == "FLUX.1, all weights":  # with a reference, at most 29 GiB a rank in updates
        updates = [row for phase, row in found.pools["train"].items() if phase.startswith("update")]
        assert max(row["peak"] - row.get("rewards", 0.0) for row in updates) < 29


@thorough
@pytest.mark.parametrize(("recipe", "hardware", "options"), [
    pytest.param(*row, id=table.key(*row)) for row in table.stated()
])  # fmt: skip
def test_a_recipe_fits_the_hardware_that_it_states(recipe, hardware, options):
    machine = [*table.machine(hardware), *NO_NETWORK.get(recipe, ())]
    found = plan(recipe, *machine, *(options or written(smallest(load(recipe, machine)))))
    assert "It fits" in found.said
    if (key := table.key(recipe, hardware, options)) in table.needs():  # which the page shows
        needs = max(float(one) for one in re.findall(r"(?:needs|need|takes) ([\d.]+) GiB", found.said))
        assert needs * 2**30 / 1e9 == pytest.approx(table.needs()[key], rel=0.03, abs=0.2)
