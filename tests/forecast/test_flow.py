"""Forecasts of generators' runs equal what is counted in real ones: phase by phase, within ten percent."""

import pytest

from burnish.config import load
from burnish.forecast.brief import BACKWARD
from burnish.forecast.forecast import forecast
from burnish.forecast.phases import LOAD
from tests.support.forecasts import counted_on, differences, foretold, wires

SMALL = [
    "algorithm=flow_grpo", "data.train_batch_size=4", "rollout.n=4", "rollout.batch_size=4",
    "rollout.num_inference_steps=5", "trainer.mini_batch_size=null", "trainer.micro_batch_size=4", "validation.n=1",
    "validation.max_prompts=8", "validation.reference_guidance=null",
]  # fmt: skip
TOLERANCE = 0.1
FULL, BF16 = ["model.lora=null"], ["model.dtype=bfloat16"]
KL = ["algorithm.kl_coef=0.1"]  # a reference, which samples are compared with gathered, and steps sharded
# samples of a suite are larger than the run's, the baseline has guidance, and full batches are waited for
BESIDE = [
    "validation.suites=[quickstart]", "validation.suite_prompts=4", "rollout.width=16", "validation.every=0",
    "validation.reference_guidance=3.0", "rollout.filter_groups.max_num_gen_batches=2",
]  # fmt: skip
CANDIDATES = ["rollout.candidates={n: 8, num_inference_steps: 3}"]
MINI = ["trainer.mini_batch_size=2"]  # whose rows other ranks have annotated


def on(ranks: int) -> list[str]:
    return ["runtime=ray", f"pools.train.processes={ranks}"] if ranks > 1 else []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "options"),
    [
        pytest.param(1, BESIDE, id="lora-and-evaluations"),
        pytest.param(1, CANDIDATES, id="candidates", marks=pytest.mark.thorough),
        pytest.param(1, [*FULL, *BF16, "model.gradient_checkpointing=true"], id="full-bf16-recomputed"),
        pytest.param(2, [*FULL, *KL], id="full-kl-2", marks=pytest.mark.cluster),
        pytest.param(1, BF16, id="lora-bf16", marks=pytest.mark.thorough),
        pytest.param(2, BF16, id="lora-bf16-2", marks=[pytest.mark.cluster, pytest.mark.thorough]),
        pytest.param(2, [*FULL, *KL, *MINI], id="minis-2", marks=[pytest.mark.cluster, pytest.mark.thorough]),
        pytest.param(4, [], id="lora-4", marks=pytest.mark.thorough),
    ],
)
def test_forecasts_equal_counted_runs(size, options, tmp_path):
    own = {option.partition("=")[0] for option in options}
    given = [*(one for one in SMALL if one.partition("=")[0] not in own), *options, *on(size)]
    real = counted_on(size, "quickstart", given, tmp_path)
    forecast_of_it = foretold(size, "quickstart", given)
    found = differences(real, forecast_of_it)
    assert all(abs(error) < TOLERANCE for error in found.values()), found
    assert wires(forecast_of_it) == pytest.approx(wires(real), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "library"),
    [
        ("nf4", "bitsandbytes"),
        pytest.param("int8", "torchao", marks=pytest.mark.thorough),
        pytest.param("fp8", "torchao", marks=pytest.mark.thorough),
    ],
)
def test_a_forecast_of_a_quantised_base_equals_a_counted_run(precision, library, tmp_path):
    """Counted with the library's own layers, foretold with layers that only take their memory."""
    pytest.importorskip(library, reason="needs burnish[quantization]")
    options = [*SMALL, *BF16, f"model.quantization.weights={precision}", "model.gradient_checkpointing=true"]
    real = counted_on(1, "quickstart", options, tmp_path)
    found = differences(real, foretold(1, "quickstart", options))
    assert all(abs(error) < TOLERANCE for error in found.values()), found


@pytest.mark.slow
def test_a_quantised_base_is_never_on_the_device_in_full():
    phases = foretold(1, "quickstart", [*SMALL, *BF16, "validation.every=null", "model.quantization.weights=int8"])
    held = phases["publish"].parts["weights"]
    assert phases[LOAD].total == phases[LOAD].parts["weights"] == held


@pytest.mark.slow
@pytest.mark.parametrize("given", [["algorithm=sft", *on(2)], ["algorithm=diffusion_dpo", "algorithm.online=false"]])
def test_a_forecast_needs_no_data_no_reward_and_no_adapter(given):
    """Pictures are made up; the adapter to go on from and a function of the user have no memory of their own."""
    absent = [
        "data.train_files=nowhere.jsonl", "data.val_files=nowhere.jsonl", "model.lora.path=nowhere",
        "rewards.mine={name: function, path: nowhere.py:mine}",
    ]  # fmt: skip
    (pool,) = forecast(load("quickstart", [*given, *absent])).pools
    assert pool.phases[BACKWARD].parts["activations"] > pool.phases[BACKWARD].parts["weights"]
