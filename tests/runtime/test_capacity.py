"""Whether pools fit on machines, and what the message says when they don't."""

import pydantic
import pytest

from burnish.options.cluster import PoolOptions, PoolsOptions, RayOptions
from burnish.runtime.capacity import Need, Node, lacking, needs

SMALL = Node("10.0.0.1", cpus=4, gpus=0)
LARGE = Node("10.0.0.2", cpus=16, gpus=8)


def why(pools: PoolsOptions, *nodes: Node) -> str:
    return "\n".join(lacking(needs(pools, gpus_there=any(node.gpus for node in nodes)), nodes))


def test_what_fits_is_no_complaint():
    pools = PoolsOptions(train=PoolOptions(processes=8), rollout=PoolOptions(device="cpu", processes=4))
    assert not why(pools, SMALL, LARGE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (PoolOptions(nodes=3, device="cpu"), "needs 3 machines, each with 1 CPU, but only 2 of 2 machines have that"),
        (PoolOptions(processes=20, device="cpu"), "needs a machine with 20 CPUs, but only 0 of 2 machines have that"),
        (PoolOptions(processes=9, cpus=0.5), "needs a machine with 4.5 CPUs and 9 GPUs"),
        (PoolOptions(nodes=2, device="cuda"), "each with 1 CPU and 1 GPU, but only 1 of 2 machines has that"),
    ],
)
def test_a_pool_that_never_fits_is_told_with_what_there_is(options, words):
    complaint = why(PoolsOptions(rollout=options), SMALL, LARGE)
    assert "pool rollout" in complaint
    assert words in complaint
    assert "10.0.0.1 with 4 CPUs and 0 GPUs; 10.0.0.2 with 16 CPUs and 8 GPUs" in complaint
    assert "lower pools.rollout.nodes, .processes, .cpus or .gpus" in complaint


def test_pools_that_fit_one_by_one_but_not_together_are_told():
    pools = PoolsOptions(train=PoolOptions(processes=3), rollout=PoolOptions(processes=2))
    assert "the pools need 5 CPUs together (train 3, rollout 2), but the cluster has 4" in why(pools, SMALL)


def test_a_pool_takes_gpus_where_there_are_any_unless_it_is_told_otherwise():
    def device(gpus_there: bool, **options) -> tuple[str, float]:
        need = Need.of("train", PoolOptions(**options), gpus_there=gpus_there)
        return need.device, need.gpus

    assert device(True) == ("cuda", 1.0)
    assert device(False) == ("cpu", 0.0)
    assert device(True, device="cpu") == device(True, gpus=0) == ("cpu", 0.0)
    assert device(False, gpus=0.5) == ("cuda", 0.5)
    assert device(False, device="cuda", gpus=2) == ("cuda", 2.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PoolOptions(device="cpu", gpus=1), "gpus is 1, but device is cpu"),
        (lambda: PoolOptions(device="cuda", gpus=0), "gpus is 0, but device is cuda"),
        (lambda: PoolOptions(gpus=1.5), "gpus is 1.5; above 1 it must be a whole number"),
        (lambda: PoolOptions(cpus=2.5), "cpus is 2.5; above 1 it must be a whole number"),
        (lambda: RayOptions(address="ray://10.0.0.1:10001"), "Ray Client"),
        (lambda: RayOptions(address="10.0.0.1:6379", init={"num_cpus": 4}), "init.num_cpus has no effect on a running"),
        (lambda: RayOptions(init={"address": "auto"}), "use ray.address for that"),
        (lambda: RayOptions(init={"runtime_env": {}}), "use ray.runtime_env for that"),
    ],
)
def test_options_that_contradict_each_other_are_refused(make, words):
    with pytest.raises(pydantic.ValidationError, match=words):
        make()


def test_pools_that_are_not_given_are_none():
    assert list(PoolsOptions().by_name()) == ["train"]
    assert list(PoolsOptions(reward=PoolOptions()).by_name()) == ["train", "reward"]
    assert PoolOptions(nodes=2, processes=3).size == 6
