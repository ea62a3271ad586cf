"""Every recipe fits the hardware that it states, by forecast: nothing here needs a weight or a GPU.

All of it is thorough, for forty forecasts take half an hour; the sizes that matter most are tested always
(test_real_generators.py, test_real_language.py).
"""

import pytest

from burnish.config.load import hardware_of, load, recipe_names
from burnish.forecast.forecast import forecast
from tools import hardware_table as table

pytestmark = [pytest.mark.thorough, pytest.mark.slow]


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
