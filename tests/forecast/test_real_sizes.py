"""Models of real sizes fit the hardware that they are meant for, by forecast: nothing here needs a weight or a GPU.

All of it is thorough, for a forecast of a large model takes minutes: BURNISH_THOROUGH=1 pytest tests/forecast, or one
of them by burnish plan.
"""

import pytest

from burnish.config.load import hardware_of, load, recipe_names
from burnish.forecast.forecast import forecast, in_bytes, shown
from tools import hardware_table as table

pytestmark = [pytest.mark.thorough, pytest.mark.slow]

EIGHT = ["runtime=ray", "pools.train.processes=8"]
CASES = {  # recipe, options, memory of a GPU
    "Qwen2.5-VL-7B, PPO, all weights, 1k + 2k tokens, 8 GPUs": (
        "qwen25_vl/ppo", [*EIGHT, "sharding.gather=compute", "rollout.batch_size=32"], "80GB",
    ),
    "Qwen2.5-VL-7B, GRPO, LoRA, one GPU": ("qwen25_vl/grpo", ["model.lora.rank=64", "rollout.batch_size=64"], "48GB"),
}  # fmt: skip


def needs(recipe: str, options: list[str], memory: int) -> tuple[bool, str]:
    """Whether a run fits, and what its pools need."""
    found = forecast(load(recipe, options))
    each = "; ".join(f"{pool.name}: {shown(pool.needs_of(memory))} in {pool.highest[0]!r}" for pool in found.pools)
    return found.fits(memory), f"{each}, of {shown(memory)}"


@pytest.mark.parametrize("name", CASES)
def test_a_real_size_fits(name: str) -> None:
    recipe, options, memory = CASES[name]
    fits, said = needs(recipe, options, in_bytes(memory))
    assert fits, said


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if hardware_of(name) is not None])
def test_a_recipe_fits_the_hardware_that_it_states(recipe: str) -> None:
    hardware = hardware_of(recipe)
    assert hardware is not None
    found = forecast(load(recipe, hardware.options))
    said = "; ".join(pool.why(hardware.bytes) for pool in found.pools)
    assert found.fits(hardware.bytes), said
    if recipe in table.needs():  # which the page shows
        told = table.needs()[recipe]
        assert found.needs_of(hardware.bytes) / 1e9 == pytest.approx(told, rel=0.03), said
