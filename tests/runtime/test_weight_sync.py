"""A publication between two pools, over both carriers, beside sampling and to a worker that was replaced."""

import os
import signal

import pytest
import torch

from burnish.options.cluster import WeightSyncOptions
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.faults import WorkerDied
from burnish.runtime.weight_stream import Layout, Mismatch
from burnish.runtime.weight_sync import WeightSync
from tests.support.ray_runs import SLOW
from tests.support.weight_sides import Samples, Trains, weights

pytestmark = pytest.mark.cluster

BUCKET = 100 / 2**20  # MiB


@pytest.fixture(scope="module")
def sides(pools):
    with (
        pools(train=2, rollout=2) as opened,
        ActorGroup(opened["train"], Trains, [(BUCKET,)] * 2, collective=True) as trains,
        ActorGroup(opened["rollout"], Samples, [(BUCKET,)] * 2, collective=False) as samples,
    ):
        yield trains, samples


def syncs(sides, carrier: str) -> WeightSync:
    return WeightSync(*sides, WeightSyncOptions(carrier=carrier, bucket_mb=BUCKET, timeout=SLOW))


@pytest.mark.parametrize("carrier", ["store", "broadcast"])
def test_weights_arrive_beside_sampling_and_are_used_when_asked(sides, carrier):
    trains, samples = sides
    syncing = syncs(sides, carrier)
    for version in (1, 2):
        trains.call("learn", version)
        before = samples.call("seen")
        sampling = samples.submit("sample_until_released")
        seconds = syncing.send(version, full=True)
        assert seconds.keys() == {"gather", "transfer", "load", "check"}
        assert min(seconds.values()) >= 0.0 < seconds["transfer"]
        assert not sampling.done()
        switching = [syncing.switch(rank, version) for rank in range(2)]
        samples.submit("release", beside=True).results()
        assert sampling.results() == before  # nothing moved under the sampler
        for switch in switching:
            syncing.switched(switch, version)
        for seen in samples.call("seen"):
            assert all(torch.equal(torch.tensor(seen[name]), tensor) for name, tensor in weights(version).items())


def test_a_byte_that_changes_on_the_way_stops_the_publication(sides):
    trains, samples = sides
    syncing = syncs(sides, "broadcast")
    trains.call("learn", 3)
    samples.call_one(1, "spoil_next")
    with pytest.raises(Mismatch, match=r"weight sync v3: tensor lora\.a .* differs .* worker 1 of pool rollout"):
        syncing.send(3, full=True)
    samples.call_one(1, "repair")


def test_small_weights_go_through_the_store_and_large_ones_do_not(sides):
    layout = Layout.of(weights(0))

    def carrier(bytes_per_bucket: int) -> str:
        options = WeightSyncOptions(bucket_mb=bytes_per_bucket / 2**20)
        return WeightSync(*sides, options)._transport(layout)

    assert (carrier(1000), carrier(100)) == ("store", "broadcast")


def test_a_worker_that_was_replaced_gets_the_version_that_the_others_have(sides):
    trains, samples = sides
    syncing = syncs(sides, "broadcast")
    trains.call("learn", 5)
    syncing.send(5, full=True)
    for rank in range(2):
        syncing.switched(syncing.switch(rank, 5), 5)
    os.kill(samples.pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        samples.call_one(0, "seen")
    samples.restart(0)
    syncing.send_to(0, 5)
    one, other = samples.call("seen")
    assert one == other
    trains.call("learn", 6)  # and the next broadcast reaches both
    syncing.send(6, full=True)
    for rank in range(2):
        syncing.switched(syncing.switch(rank, 6), 6)
    one, other = samples.call("seen")
    assert one == other


def test_a_worker_that_dies_while_it_receives_is_replaced_and_training_survives(sides):
    trains, samples = sides
    syncing = syncs(sides, "broadcast")
    trains.call("learn", 7)
    syncing.send(7, full=True)
    pids = list(trains.pids)
    samples.call_one(1, "die_in_next")
    with pytest.raises(WorkerDied, match="worker 1 of pool rollout"):
        syncing.send(8, full=True)
    assert trains.call("learn", 8) == [None, None]
    assert trains.pids == pids
    samples.restart(1)
    syncing.send(8, full=True)
    for rank in range(2):
        syncing.switched(syncing.switch(rank, 8), 8)
    one, other = samples.call("seen")
    assert one == other
