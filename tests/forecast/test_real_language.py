"""Language models of real sizes fit the GPUs that they are meant for, by forecast: no weight and no GPU is needed."""

import pytest

from burnish.config.hardware import in_bytes
from burnish.config.load import hardware_of, load
from burnish.forecast.forecast import forecast

EIGHT = ["runtime=ray", "pools.train.processes=8", "sharding.gather=compute"]


pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("recipe", "options", "memory"),
    [
        pytest.param("qwen25_vl/grpo", ["model.lora.rank=64", "rollout.batch_size=64"], "48GB", id="7B-lora-one-card"),
        pytest.param("qwen25_vl/ppo", [*EIGHT, "rollout.batch_size=32"], "80GB", id="7B-ppo-8-cards"),
    ],
)
def test_a_run_of_a_thousand_and_two_thousand_tokens_fits(recipe: str, options: list[str], memory: str) -> None:
    config = load(recipe, options)
    assert (config.data.max_prompt_length, config.rollout.max_new_tokens) == (1024, 2048)
    found = forecast(config)
    assert found.fits(in_bytes(memory)), [pool.why(in_bytes(memory)) for pool in found.pools]


def test_seventy_two_billion_weights_fit_on_what_their_recipe_states() -> None:
    """64 GPUs of 80 GB, 16 of which are vLLM's."""
    recipe = "qwen25_vl_72b/grpo"
    (hardware,) = hardware_of(recipe)
    assert (hardware.gpus, hardware.memory_gb) == (64, 80)
    config = load(recipe, [f"gpus={hardware.gpus}"])
    assert (config.data.max_prompt_length, config.rollout.max_new_tokens) == (1024, 2048)
    found = forecast(config)
    assert [pool.name for pool in found.pools] == ["train", "rollout"]
    assert found.fits(hardware.bytes), [pool.why(hardware.bytes) for pool in found.pools]
