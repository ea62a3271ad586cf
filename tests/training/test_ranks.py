"""Ranks agree, stop together, sum the gradients of what only some of them have, and hold no more than their share."""

import ipaddress
import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from torch import Tensor, distributed

from benchmarks.checkpoints import measure
from benchmarks.loading import MIB, loaded
from burnish.options.cluster import ShardingOptions
from burnish.training.ranks import Lockstep, Ranks, group_of_one
from burnish.training.sharding import Replicated, mesh_of, shard
from burnish.utils.errors import Cancelled, UserError
from tests.support.rank_runs import together
from tests.support.sockets import listening

pytestmark = pytest.mark.cluster


def in_step(ranks: Ranks) -> dict[str, Any]:
    """What becomes of work in step where the second of two ranks stops it, or fails in it."""
    found, done = {}, []
    first = ranks.context.rank == 0

    def work(*, stop: int, fail: int, forwards: int = 3) -> str:
        done.clear()

        def check_cancelled() -> None:
            if not first and len(done) == stop:
                raise Cancelled

        try:
            with Lockstep(ranks.context) as step:
                for number in range(forwards):
                    if not first and number == fail:
                        raise ValueError
                    with step.forward(check_cancelled):
                        done.append(ranks.context.max(number))
                if not first and fail == forwards:
                    raise ValueError
        except (Cancelled, ValueError) as error:
            return f"{type(error).__name__} after {len(done)}"
        return f"{len(done)}"

    found = {"all": work(stop=9, fail=9), "stopped": work(stop=1, fail=9)}
    found["failed"] = [work(stop=9, fail=number) for number in (0, 2, 3)]

    def cancelled() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        ranks.context.first(cancelled)
    found["score"] = ranks.context.first(lambda: ranks.rank)
    return found | {"rows": ranks.rows.size, "barrier": ranks.sum({"ranks": 1.0})["ranks"]}


def agree(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Every collective once, with more on one rank than on the other."""
    sums = [ranks.sum({"both": 1.5, f"only {ranks.rank}": 2.0}), ranks.sum({"both": float(ranks.rank)})]
    sums.append(ranks.sum({} if ranks.rank else {"only 0": float("nan")}))

    def fail() -> None:
        raise UserError("no room")

    with pytest.raises(UserError, match="no room"):
        ranks.first(fail)
    ranks.max(0)  # the end
    return {
        "sums": sums, "max": ranks.max(3 + ranks.rank), "gather": ranks.gather(torch.full((1,), ranks.rank)),
        "first": ranks.first(lambda: ranks.rank), "listening": listening([os.getpid()]),
        "in step": in_step(ranks.in_contexts(2)),
    }  # fmt: skip


def test_ranks_agree_stop_together_and_are_reached_from_this_machine_alone(tmp_path: Path) -> None:
    for rank, found in enumerate(together(agree, tmp_path, deadline=120)):
        first, second, third = found["sums"]
        assert first == {"both": 3.0, "only 0": 2.0, "only 1": 2.0}
        assert second == {"both": 1.0}
        assert third.keys() == {"only 0"}
        assert third["only 0"] != third["only 0"]
        assert (found["max"], found["first"]) == (4, 0)
        assert [int(value) for value in found["gather"]] == [0, 1]
        assert not [one for one in found["listening"] if ipaddress.ip_address(one.rpartition(":")[0]).is_unspecified]
        error = "ValueError" if rank else "Cancelled"
        assert found["in step"] == {
            "all": "3", "stopped": "Cancelled after 1", "failed": [f"{error} after {n}" for n in (0, 2, 3)],
            "score": 0, "rows": 1, "barrier": 2.0,
        }  # fmt: skip
    with group_of_one():
        where = [one.rpartition(":")[0] for one in listening([os.getpid()])]
        assert not [one for one in where if not ipaddress.ip_address(one).is_loopback]


class Towered(torch.nn.Module):
    """Layers behind a tower that some inputs pass and others don't, as images and words do."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = torch.nn.Linear(4, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        for number, weight in enumerate(self.parameters()):
            weight.data = torch.linspace(-1, 1, weight.numel()).sin().view(weight.shape) / (1 + number)

    def forward(self, x: Tensor, *, image: bool) -> Tensor:
        x = self.tower(x) if image else x
        for layer in self.layers:
            x = layer(x).tanh()
        return x

    def loss(self, rank: int, *, image: bool = False) -> Tensor:
        x = torch.linspace(0, 1 + rank, 8).view(2, 4)
        return self(x, image=image).sum() + self(x + 1, image=image).square().sum()


LAID = {
    **{f"stage {n}": ShardingOptions(zero_stage=n) for n in (1, 2, 3)},
    **{f"rounded, stage {n}": ShardingOptions(gather="compute", zero_stage=n) for n in (1, 3)},
    "copied": ShardingOptions(shard_size=1, zero_stage=3),
}


def lower(options: ShardingOptions) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=options.gather == "compute")


def learn_without_images(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Gradients of several passes; before them one rank has sampled more than the other."""
    found = {}
    for name, options in LAID.items():
        network, compute = Towered(), torch.bfloat16 if options.gather == "compute" else torch.float32
        sharded = shard(
            [network], network.layers, mesh_of(ranks, options.shard_size, "cpu"), options, compute=compute,
            device=torch.device("cpu"),
        )  # fmt: skip
        with lower(options), torch.no_grad():
            for sign in (-1, 1):  # what a step changes is seen by the next forward
                sharded(partial(network.loss, 0))
                for weight in network.parameters():
                    weight.to_local().neg_()
                found[f"{name}, {sign}"] = sharded(partial(network.loss, 0, image=True))
        with lower(options), torch.no_grad(), sharded.gathered():
            for _ in range(3 * ranks.rank):
                network.loss(ranks.rank)
        counted = {name: Mock(wraps=getattr(distributed, name)) for name in ("reduce_scatter_single", "all_reduce")}
        with sharded.kept(), patch.multiple(distributed, **counted):
            for last in (False, True):
                sharded.micro_batch(last=last)
                with lower(options):
                    loss = sharded(partial(network.loss, ranks.rank, image=not (ranks.rank or last)))
                loss.backward()
        scatters = 3 + 1 if options.zero_stage == 1 else 2 * (3 * 2 + 1)  # three layers have two calls in a pass
        sent = [0, 3 + 1] if options.shard_size == 1 else [scatters, 0]
        assert [kind.call_count for kind in counted.values()] == sent, name
        found[name] = {key: value.grad.full_tensor() for key, value in network.named_parameters()}
    return found


def test_a_rank_without_images_sums_its_gradients_where_the_other_does(tmp_path: Path) -> None:
    both = together(learn_without_images, tmp_path, deadline=120)
    for name, options in LAID.items():
        whole, near = Towered(), {"rtol": 0.05, "atol": 0.05} if options.gather == "compute" else {}
        for sign in (-1, 1):
            for weight in whole.parameters():
                weight.data.neg_()
            with lower(options):
                torch.testing.assert_close(both[1][f"{name}, {sign}"], whole.loss(0, image=True).detach(), **near)
        for rank in (0, 1):
            for last in (False, True):  # the first of two ranks has images, in its first micro-batch
                with lower(options):
                    loss = whole.loss(rank, image=not (rank or last))
                loss.backward()
        for found in both:
            for key, weight in whole.named_parameters():
                torch.testing.assert_close(found[name][key], weight.grad, **near)
    weights, before = dict(whole.named_parameters()), [weight.grad.clone() for weight in whole.parameters()]
    with group_of_one(), patch("burnish.training.sharding.BUCKET", 20):  # two weights at once
        Replicated(Ranks(), weights).settle_gradients(dict.fromkeys(weights, 1.0))
    assert all(map(torch.equal, before, (weight.grad for weight in weights.values())))
    options = ShardingOptions(offload=True)
    with pytest.raises(UserError, match=r"sharding\.offload is true"):
        shard([Towered()], [], None, options, compute=torch.float32, device=torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_peak_of_loading_is_share_and_constant(size, tmp_path, new_process):
    layers = 6
    count, (found,) = new_process(loaded, tmp_path, 320, layers, [size], lora=False)
    whole = count * (4 + 2) / MIB  # weights that learn in float32, and a reference in bfloat16
    block = count * 4 / layers / MIB  # whose full parameters are made once, one after the other
    for share, peak in found:
        assert share <= 1.15 * whole / size + 8
        assert peak <= 1.15 * whole / size + 2 * block + 12
    if size == 1:  # with adapters one process maps the weights and reads none
        count, (((share, _),),) = new_process(loaded, tmp_path / "lora", 320, layers, [1], lora=True)
        assert share <= 0.15 * count * 2 / MIB + 8


@pytest.mark.thorough
@pytest.mark.cluster
@pytest.mark.parametrize(("size", "asynchronous"), [(2, True), *((size, False) for size in (1, 2, 4))])
def test_the_peak_of_saving_is_a_share_and_a_constant(tmp_path, new_process, size, asynchronous):
    """And nothing is read again; 16 MiB are pieces that are written and read."""
    total = 96 * 4 // 3  # MiB of weights, moments and average
    found = new_process(measure, size, tmp_path, matrices=8, asynchronous=asynchronous)
    for rank, (save, load) in enumerate(zip(found["save"], found["load"], strict=True)):
        share = save["share"]
        assert share == total / size
        copied = share if asynchronous else 0.0
        assert save["above"] <= copied + 0.15 * share + 16
        assert load["above"] <= 0.15 * share + 16
        assert save["read"] < 1.0, "what was written is not read again"
        verified = total if rank == 0 else 0.0
        assert load["read"] < verified + share + 1.0, "a rank reads its own slices"
