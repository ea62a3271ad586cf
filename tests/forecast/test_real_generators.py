"""Generators of real sizes fit the GPUs that they are meant for, by forecast: nothing here needs a weight or a GPU.

Limits count what a GPU must have: the peak, fragments, CUDA, and the networks of rewards beside it. All other recipes
are thorough (test_real_sizes.py).
"""

import pytest

from burnish.config.hardware import in_bytes
from burnish.config.load import load
from burnish.forecast.brief import BACKWARD, STEP, UPDATE
from burnish.forecast.forecast import Forecast, forecast, shown

EIGHT = ["runtime=ray", "pools.train.processes=8"]
AWAY = ["rewards.pickscore.put_away=true", "rewards.watched_hpsv2.put_away=true"]
SMALL = ["model.offload=true", *AWAY]
QUANTISED = ["model.quantization.weights=nf4", "model.quantization.text_encoders=fp8_cast"]
ALL = ["model.lora=null", "ema=null", "algorithm.kl_coef=0.04", *EIGHT, "sharding.gather=compute", *SMALL]

pytestmark = pytest.mark.slow


def foretold(recipe: str, options: list[str]) -> Forecast:
    """A forecast, with what it says shown where a test fails."""
    found = forecast(load(recipe, options))
    for pool in found.pools:
        print(pool.name, {name: shown(peak.total) for name, peak in pool.phases.items()})
    return found


@pytest.mark.parametrize(
    ("recipe", "options", "memory"),
    [
        pytest.param("flux/flow_grpo", SMALL, "40GiB", id="FLUX.1, LoRA"),
        pytest.param("flux/flow_grpo", [*SMALL, *QUANTISED], "22GiB", id="FLUX.1, LoRA, quantised base"),
        pytest.param("sd35/flow_grpo", [], "80GB", id="SD3.5-M"),
        pytest.param("sdxl/flow_grpo", [], "24GB", id="SDXL"),
        pytest.param("qwen_image/flow_grpo", [], "80GB", id="Qwen-Image"),
        pytest.param("wan22/flow_grpo", [*EIGHT, "model.offload=true"], "80GB", id="Wan 2.2 A14B"),
    ],
)
def test_a_generator_fits(recipe: str, options: list[str], memory: str) -> None:
    found = foretold(recipe, options)
    assert found.fits(in_bytes(memory)), shown(found.needs)


def test_all_weights_of_flux_train_on_eight_gpus() -> None:
    """With a reference, at most 29 GiB a rank in updates, and 60 GiB at any time."""
    (pool,) = foretold("flux/flow_grpo", ALL).pools
    beside = pool.phases[UPDATE].parts["rewards"]
    updates = {name: pool.phases[name].total - beside for name in (UPDATE, BACKWARD, STEP)}
    assert max(updates.values()) < 29 * 2**30, updates
    assert pool.needs < 60 * 2**30, shown(pool.needs)
