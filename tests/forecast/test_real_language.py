"""Language models of real sizes fit the GPUs that they are meant for, by forecast: no weight and no GPU is needed."""

import pytest

from burnish.config.load import load
from burnish.forecast.forecast import forecast, in_bytes

EIGHT = ["runtime=ray", "pools.train.processes=8", "sharding.gather=compute"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "options", "memory"),
    [
        pytest.param("qwen25_vl/grpo", ["model.lora.rank=64", "rollout.batch_size=64"], "48GB", id="7B-lora-one-card"),
        pytest.param(
            "qwen25_vl/ppo", [*EIGHT, "rollout.batch_size=32"], "80GB", id="7B-ppo-8-cards", marks=pytest.mark.thorough
        ),
    ],
)  # fmt: skip
def test_a_run_of_a_thousand_and_two_thousand_tokens_fits(recipe: str, options: list[str], memory: str) -> None:
    config = load(recipe, options)
    assert (config.data.max_prompt_length, config.rollout.max_new_tokens) == (1024, 2048)
    found = forecast(config)
    assert found.fits(in_bytes(memory)), [pool.why(in_bytes(memory)) for pool in found.pools]
