"""Recipes of real sizes fit the hardware that they state, by forecast: nothing here needs a weight or a GPU.

Limits count what a GPU must have: the peak, fragments, CUDA, and the networks of rewards beside it.
"""

from __future__ import annotations

import pytest

from burnish.config.hardware import in_bytes
from burnish.config.load import hardware_of, load, recipe_names
from burnish.forecast.brief import BACKWARD, STEP, UPDATE
from burnish.forecast.forecast import forecast
from tools import hardware_table as table

thorough = pytest.mark.thorough
EIGHT = ["runtime=ray", "pools.train.processes=8"]
SMALL = ["model.offload=true", "rewards.pickscore.put_away=true", "rewards.watched_hpsv2.put_away=true"]
QUANTISED = ["model.quantization.weights=nf4", "model.quantization.text_encoders=fp8_cast"]
FEW = ["rollout.num_inference_steps=4", "validation.every=null", "validation.before=false"]
LORA = ["model.lora.rank=64", "rollout.batch_size=64"]
ALL = ["model.lora=null", "ema=null", "algorithm.kl_coef=0.04", *EIGHT, "sharding.gather=compute", *SMALL]
SIZES = {
    "SDXL, few steps": ("sdxl/flow_grpo", FEW, "24GB"), "SDXL": ("sdxl/flow_grpo", [], "24GB"),
    "Qwen2.5-VL, LoRA": ("qwen25_vl/grpo", LORA, "48GB"),
    "FLUX.1, LoRA": ("flux/flow_grpo", SMALL, "40GiB"),
    "FLUX.1, LoRA, quantised base": ("flux/flow_grpo", [*SMALL, *QUANTISED], "22GiB"),
    "SD3.5-M": ("sd35/flow_grpo", [], "80GB"), "Qwen-Image": ("qwen_image/flow_grpo", [], "80GB"),
    "Wan 2.2 A14B": ("wan22/flow_grpo", [*EIGHT, "model.offload=true"], "80GB"),
    "Qwen2.5-VL, PPO": (
        "qwen25_vl/ppo", [*EIGHT, "sharding.gather=compute", "rollout.batch_size=32"], "80GB",
    ),
    "FLUX.1, all weights": ("flux/flow_grpo", ALL, "60GiB"),
}  # fmt: skip


@thorough
@pytest.mark.parametrize("name", SIZES)
def test_a_model_of_real_size_fits(name):
    recipe, options, memory = SIZES[name]
    config = load(recipe, options)
    if "Qwen2.5-VL" in name:
        assert (config.data.max_prompt_length, config.rollout.max_new_tokens) == (1024, 2048)
    found = forecast(config)
    assert found.fits(in_bytes(memory)), [pool.why(in_bytes(memory)) for pool in found.pools]
    if options is ALL:  # with a reference, at most 29 GiB a rank in updates
        (pool,) = found.pools
        beside = pool.phases[UPDATE].parts["rewards"]
        updates = {phase: pool.phases[phase].total - beside for phase in (UPDATE, BACKWARD, STEP)}
        assert max(updates.values()) < 29 * 2**30, updates


@thorough
@pytest.mark.parametrize(
    ("recipe", "hardware"),
    [
        pytest.param(name, one, id=f"{name} {one.gpus}x{one.memory_gb:g}")
        for name in recipe_names()
        for one in hardware_of(name)
    ],
)
def test_a_recipe_fits_the_hardware_that_it_states(recipe, hardware):
    found = forecast(load(recipe, [f"gpus={hardware.gpus}", f"memory={hardware.memory_gb:g}GB"]))
    said = "; ".join(pool.why(hardware.bytes) for pool in found.pools)
    assert found.fits(hardware.bytes), said
    if (key := table.key(recipe, hardware)) in table.needs():  # which the page shows
        assert found.needs_of(hardware.bytes) / 1e9 == pytest.approx(table.needs()[key], rel=0.03), said


def test_seventy_two_billion_weights_state_64_gpus_of_which_vllm_has_some():
    (hardware,) = hardware_of("qwen25_vl_72b/grpo")
    assert (hardware.gpus, hardware.memory_gb) == (64, 80)
    config = load("qwen25_vl_72b/grpo", [f"gpus={hardware.gpus}"])
    assert (config.data.max_prompt_length, config.rollout.max_new_tokens) == (1024, 2048)
    assert config.pools.rollout.processes
