"""GPUs: what a recipe states about its machine, what gpus=N makes of it, and machines that have too few of them."""

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
