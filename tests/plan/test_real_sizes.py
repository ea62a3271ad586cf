"""Recipes of real sizes fit the hardware that they state, by forecast: nothing here needs a weight or a GPU.

Limits count what a GPU must have: the peak, fragments, CUDA, and the networks of rewards beside it.
"""

import re

import pytest

from burnish.config import load
from burnish.config.batches import smallest, written
from tests.plan.plans import plan
from tools import hardware_table as table

thorough = pytest.mark.thorough
EIGHT = ["runtime=ray", "pools.train.processes=8"]
SMALL = ["model.offload=true", "rewards.pickscore.put_away=true", "rewards.watched_hpsv2.put_away=true"]
QUANTISED = ["model.quantization.weights=nf4", "model.quantization.text_encoders=fp8_cast"]
FEW = ["rollout.num_inference_steps=4", "validation.every=null", "validation.before=false"]
LENGTHS = ["data.max_prompt_length=1024", "rollout.max_new_tokens=2048"]
LEAN = ["sharding.shard_size=null", "sharding.zero_stage=3", "trainer.micro_batch_size=2", "rollout.batch_size=4"]
ALL = ["model.lora=null", "ema=null", "algorithm.kl_coef=0.04", *EIGHT, "sharding.gather=compute", *LEAN, *SMALL]
# what follows the gradient of a network asks for its files, which are not here: the small network of ocr_ctc instead
NO_NETWORK = {"flux/srpo": ["rewards.hpsv2=null", "rewards.ocr_ctc.weight=1", "rewards.watched_pickscore=null"]}
SIZES = {
    "SDXL, few steps": ("sdxl/flow_grpo", FEW, "24GB"), "SD3.5-M": ("sd35/flow_grpo", [], "80GB"),
    "Qwen2.5-VL, LoRA": ("qwen25_vl/grpo", ["model.lora.rank=64", "rollout.batch_size=64", *LENGTHS], "48GB"),
    "FLUX.1, LoRA": ("flux/flow_grpo", [*SMALL, "model.compile=true"], "48GB"),
    "FLUX.1, LoRA, quantised base": ("flux/flow_grpo", [*SMALL, *QUANTISED], "22GiB"),
    "Qwen2.5-VL, PPO": (
        "qwen25_vl/ppo", [*EIGHT, "sharding.gather=compute", "rollout.batch_size=32", *LENGTHS], "80GB",
    ),
    "FLUX.1, all weights": ("flux/flow_grpo", ALL, "61GiB"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def functions(tmp_path, monkeypatch):
    """What some recipes leave to the user."""
    names = ("edit_score", "geneval", "geneval2", "hpsv3")
    (tmp_path / "rewards.py").write_text("".join(f"def {name}(samples, prompts):\n    return []\n" for name in names))
    monkeypatch.chdir(tmp_path)


@thorough
@pytest.mark.parametrize("name", SIZES)
def test_a_model_of_real_size_fits(name):
    recipe, options, memory = SIZES[name]
    found = plan(recipe, *options, f"memory={memory}")
    assert "It fits" in found.said
    if options is ALL:  # with a reference, at most 29 GiB a rank in updates
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
