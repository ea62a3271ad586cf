"""Where workers are to be: every contradiction is refused before anything is loaded, and nothing else is."""

import pytest

from burnish.config import load
from burnish.utils.errors import ConfigError

RAY = "runtime=ray"
SUPERVISED = "algorithm=sft"
REFUSED = {
    "pools of one process": (["pools.train.processes=2"], "pools.train.processes is given, but runtime is local"),
    "cluster of one process": (["ray.max_restarts=1"], "ray.max_restarts is given, but runtime is local"),
    "shards of one process": (["sharding.shard_size=2"], "sharding.shard_size is given, but runtime is local"),
    "shards of one rank": ([RAY, "sharding.shard_size=2"], "sharding.shard_size is given, but pools.train has one"),
    "shards of one process in CPU memory": (
        ["sharding.offload=true", "sharding.shard_size=1"], "sharding.shard_size is given, but runtime is local",
    ),
    "CPU memory of the CPU": (
        ["sharding.offload=true", "model.device=cpu"], "sharding.offload is true, but model.device is cpu",
    ),
    "CPU memory twice": (
        ["sharding.offload=true", "optimizer.offload=true"], "optimizer.offload and sharding.offload are true",
    ),
    "states of several ranks": (
        [RAY, "pools.train.processes=2", "optimizer.offload=true"],
        "the 2 processes of pools.train shard the states; set sharding.offload=true",
    ),
    "8-bit states of several ranks": (
        [RAY, "pools.train.processes=2", "optimizer.name=adamw_8bit", "model.device=cuda"],
        "optimizer.name is adamw_8bit, but the 2 processes of pools.train hold weights in shards",
    ),
    "another optimizer in CPU memory": (
        ["sharding.offload=true", "optimizer.name=muon"], "optimizer.name is muon, but sharding.offload keeps",
    ),
    "compiled in CPU memory": (
        ["sharding.offload=true", "model.compile=true"], "model.compile and sharding.offload are true",
    ),
    "uneven shards": (
        [RAY, "pools.train.processes=3", "sharding.shard_size=2"],
        "sharding.shard_size is 2, which does not divide the 3 processes",
    ),
    "sequences split by one": (
        ["sharding.context_parallel=2"], "sharding.context_parallel is given, but runtime is local",
    ),
    "groups of two among three": (
        [RAY, "pools.train.processes=3", "sharding.context_parallel=2"],
        "sharding.context_parallel is 2, which does not divide the 3 processes",
    ),
    "rewards followed through part of the tokens": (
        [RAY, "pools.train.processes=2", "sharding.context_parallel=2", "algorithm=draft"],
        "draft follows gradients of rewards through the steps of sampling",
    ),
    "sequences of quantised weights": (
        [RAY, "pools.train.processes=2", "sharding.context_parallel=2", "model.quantization.weights=fp8_cast"],
        "sharding.context_parallel is given, but model.quantization.weights is fp8_cast",
    ),
    "ahead in one process": (["pipeline.depth=1"], "pipeline.depth is 1, but runtime is local"),
    "ahead by those that learn": ([RAY, "pipeline.depth=1"], "pipeline.depth is 1, but there is no rollout pool"),
    "ahead of data": ([RAY, SUPERVISED, "pipeline.depth=1"], "pipeline.depth is 1, but sft trains offline"),
    "bound of nothing": ([RAY, "pipeline.max_staleness=1"], "pipeline.max_staleness is given, but pipeline.depth is 0"),
    "drop of nothing": ([RAY, "pipeline.drop=true"], "pipeline.drop is given, but pipeline.depth is 0"),
    "patience for nothing": ([RAY, "pipeline.timeout=9"], "pipeline.timeout is given, but pipeline.depth is 0"),
    "samplers of data": (
        [RAY, SUPERVISED, "pools.rollout.processes=1"],
        "pools.rollout is given, but sft trains offline",
    ),
    "publication to nobody": (
        [RAY, "ray.publication.carrier=store"],
        "ray.publication.carrier is given, but there is no rollout pool",
    ),
    "no such runtime": (["runtime=slurm"], "runtime is slurm"),
    "half a GPU too many": ([RAY, "pools.train.gpus=1.5"], "above 1 it must be a whole number"),
    "GPU on the CPU": ([RAY, "pools.train={device: cpu, gpus: 1}"], "gpus is 1, but device is cpu"),
    "CPU and GPU": (
        [RAY, "pools.train.device=cpu", "model.device=cuda"], "pools.train.device is cpu, but model.device is cuda",
    ),
    "GPU and CPU": (
        [RAY, "pools.rollout.device=cuda", "model.device=cpu"], "pools.rollout.device is cuda, but model.device is cpu",
    ),
    "no GPU on the GPU": ([RAY, "pools.train={device: cuda, gpus: 0}"], "gpus is 0, but device is cuda"),
    "Ray Client": ([RAY, "ray.address=ray://somewhere:10001"], "a Ray Client address"),
    "CPUs of a running cluster": (
        [RAY, "ray={address: 'somewhere:6379', init: {num_cpus: 4}}"],
        "init.num_cpus has no effect on a running cluster",
    ),
    "address twice": ([RAY, "ray.init={address: auto}"], "init.address is given; use ray.address"),
}  # fmt: skip
TAKEN = {
    "colocated": [RAY, "pools.train.processes=2", "sharding.shard_size=2"],
    "apart": [RAY, "pools.train={nodes: 2, processes: 2}", "pools.rollout.processes=2", "pools.reward.processes=1"],
    "ahead": [RAY, "pools.rollout.processes=1", "pipeline={depth: 3, max_staleness: 1, drop: true, timeout: 9}"],
    "devices": [RAY, "pools.train.device=cuda", "pools.rollout.device=cpu", "pools.reward.device=cpu"],
    "data": [RAY, "algorithm=sft", "pools.train.processes=2"],
}


@pytest.mark.parametrize(("overrides", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(recipe, overrides, message):
    with pytest.raises(ConfigError) as caught:
        load(recipe, overrides)
    assert message in str(caught.value)


def test_one_process_keeps_its_weights_in_cpu_memory(recipe):
    options = ["sharding.offload=true", "sharding.gather=compute", "sharding.reshard_after_forward=false"]
    assert load(recipe, options).sharding.offload


@pytest.mark.parametrize("overrides", TAKEN.values(), ids=TAKEN)
def test_taken(recipe, overrides):
    assert load(recipe, overrides).runtime == "ray"


def test_texts_are_not_split():
    options = [RAY, "pools.train.processes=2", "sharding.context_parallel=2"]
    with pytest.raises(ConfigError, match=r"sharding\.context_parallel is 2, but only generators split"):
        load("vlm_quickstart", options)


SLEEPER = [RAY, "rollout.engine=vllm", "rollout.vllm={python: /usr/bin/python3, sleep: true}"]


def test_vllm_rests_beside_ranks_that_learn_and_nowhere_else():
    assert load("vlm_quickstart", [*SLEEPER, "pools.train.processes=2"]).rollout.vllm.sleep
    with pytest.raises(ConfigError, match=r"rollout\.vllm\.sleep is true, but vLLM runs in the rollout pool"):
        load("vlm_quickstart", [*SLEEPER, "pools.rollout.processes=1"])
