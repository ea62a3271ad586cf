"""Every recipe fits the hardware that it states, by forecast: nothing here needs a weight or a GPU.

All of it is thorough, for forty forecasts take half an hour; the sizes that matter most are tested always
(test_real_generators.py, test_real_language.py).
"""

import pytest

from burnish.config.hardware import Hardware
from burnish.config.load import hardware_of, load, recipe_names
from burnish.forecast.forecast import forecast
from tools import hardware_table as table

pytestmark = [pytest.mark.thorough, pytest.mark.slow]


@pytest.mark.parametrize(
    ("recipe", "hardware"),
    [
        pytest.param(name, one, id=f"{name} {one.gpus}x{one.memory_gb:g}")
        for name in recipe_names()
        for one in hardware_of(name)
    ],
)
def test_a_recipe_fits_the_hardware_that_it_states(recipe: str, hardware: Hardware) -> None:
    found = forecast(load(recipe, [f"gpus={hardware.gpus}", f"memory={hardware.memory_gb:g}GB"]))
    said = "; ".join(pool.why(hardware.bytes) for pool in found.pools)
    assert found.fits(hardware.bytes), said
    if (key := table.key(recipe, hardware)) in table.needs():  # which the page shows
        told = table.needs()[key]
        assert found.needs_of(hardware.bytes) / 1e9 == pytest.approx(told, rel=0.03), said
