"""GPUs: what a recipe states about its machine, what gpus=N makes of it, and machines that have too few of them."""

import json
from dataclasses import replace

import pytest
import torch

import burnish as package
from tests.support.tiny_run import burnish


def composed(recipe, *options):
    config = package.load(recipe, *options)
    train = config.pools.train
    return config.runtime, train.nodes, train.processes, train.device


def test_gpus_compose_what_a_recipe_states_below_the_command_line():
    assert composed("qwen25_vl/grpo") == ("local", 1, 1, "auto")
    assert composed("qwen25_vl/grpo", "gpus=8") == ("ray", 1, 8, "cuda")
    assert composed("qwen25_vl/grpo", "gpus=8", "nodes=4") == ("ray", 4, 8, "cuda")
    assert composed("sd35/flow_grpo", "gpus=16") == ("ray", 2, 8, "cuda")
    assert package.load("qwen25_vl/grpo", "gpus=8").sharding.gather == "compute"
    assert package.load("qwen25_vl/grpo", "gpus=8", "sharding.gather=exact").sharding.gather == "exact"
    twice = package.load("qwen25_vl_72b/grpo", "gpus=128").pools
    assert (twice.train.nodes, twice.rollout.nodes, twice.rollout.gpus) == (12, 4, 8)
    for recipe, *words in (("quickstart", "gpus=12"), ("qwen25_vl_72b/grpo", "gpus=8", "nodes=9")):
        with pytest.raises(ValueError, match=r"gpus is (12, more|72, but this recipe has pools for 64)"):
            package.load(recipe, *words)


STATED = [{"gpus": number, "memory_gb": memory, "options": [f"optimizer.lr={lr}", "sharding.gather=compute"]}
          for number, memory, lr in ((1, 24, 1e-4), (1, 80, 2e-4), (8, 80, 3e-4))]  # fmt: skip


@pytest.mark.parametrize(("words", "lr"), [
    (["gpus=1"], 1e-4), (["gpus=1", "memory=80GB"], 2e-4), (["gpus=1", "memory=24GB"], 1e-4), (["gpus=6"], 1e-4),
    (["gpus=2", "nodes=8"], 3e-4), (["gpus=1", "memory=16GB"], 2e-4),
], ids=str)  # fmt: skip
def test_of_several_machines_the_nearest_that_is_not_larger_gives_its_options(words, lr, tmp_path):
    (tmp_path / "stated.yaml").write_text(json.dumps({"extends": "quickstart", "hardware": STATED}))
    config = package.load(str(tmp_path / "stated.yaml"), *words)
    assert (config.optimizer.lr, config.sharding.gather == "exact") == (lr, "gpus=1" in words)


def test_a_machine_that_cannot_run_a_recipe_refuses_it_with_the_command_for_one_that_can(monkeypatch, tmp_path):
    def refused(*words, gpus=0):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        said = burnish("train", "qwen25_vl/grpo", *words, f"output_dir={tmp_path}/run", status=2)
        return said.message + " ".join(said.out.split())

    assert "burnish train qwen25_vl/grpo gpus=8 seed=3" in refused("seed=3")
    assert "8 GPUs run: burnish train qwen25_vl/grpo gpus=8" in refused("gpus=8")
    assert "2 machines" in refused("gpus=16", "force=true")
    assert "ray.address=HOST:6379" in refused("gpus=16", "force=true")
    assert "gpus is 8, but this machine has 2 GPUs" in refused("gpus=8", "seed=3", gpus=2)
    assert "gpus=2" in refused(gpus=2)
    for more in (f"model.path={tmp_path}/none", "force=true"):  # what stops it is something else
        assert "gpus=8" not in refused(more).partition("error:")[2].partition("qwen25_vl/grpo is made for")[0]
    config = replace(package.load("qwen25_vl/grpo", "seed=3"), steps=7)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"burnish\.load\('qwen25_vl/grpo', 'gpus=8', 'seed=3'\)"):
        package.train(config)
