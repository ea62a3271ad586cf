"""Workers on one small Ray: called together and one by one, dead, late, replaced, judging, and given weights."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from burnish.options.cluster import PoolOptions, PoolsOptions, RayOptions
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.calls import RestartLimit, Unschedulable, WorkerDied, WorkerTimeout, first_done
from burnish.runtime.cluster import cluster, reserved
from burnish.runtime.transfer import Stored, StoredRows
from burnish.runtime.weight_sync import WeightSync
from burnish.runtime.weights import Mismatch
from burnish.runtime.workers import PooledScorer
from burnish.utils.errors import ConfigError, UserError
from tests.runtime.test_batches import everything
from tests.support.equality import same
from tests.support.processes import gone
from tests.support.ray_runs import SLOW, Forks
from tests.support.sockets import descendants, listening, reached_from_outside
from tests.support.toy_workers import Judging, Toy
from tests.support.weight_sides import Samples, Trains

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
NOTICED = 5.0  # seconds in which a death has to show: it takes 0.1 where the machine is idle
LONG = 600.0
OPTIONS = RayOptions(address="local", start_timeout=SLOW, call_timeout=SLOW, placement_timeout=60.0)


@pytest.fixture(scope="module")
def connection(forks: Forks) -> Iterator[None]:
    """A Ray that Burnish starts on loopback, and stops; its workers are forks."""
    room = PoolsOptions(train=PoolOptions(cpus=0.01))
    environment = {"py_executable": shlex.join(forks.command)}
    init = {"num_cpus": 8, "object_store_memory": 100_000_000, "runtime_env": environment}
    with cluster(RayOptions(address="local", init=init, placement_timeout=SLOW), room):
        yield


@pytest.fixture(scope="module")
def pools(connection: None) -> Callable:
    """Makes pools for a with statement: ``pools(train=2, rollout=1)``, with other options of Ray as ``options``."""

    @contextmanager
    def make(options: RayOptions = OPTIONS, **processes: int) -> Iterator[dict]:
        sizes = {name: PoolOptions(processes=count, cpus=0.5) for name, count in processes.items()}
        with reserved(options, PoolsOptions(**sizes), started=True) as opened:
            yield opened

    return make


@pytest.fixture(scope="module")
def three(pools):
    with pools(train=3) as opened, ActorGroup(opened["train"], Toy, [(10,), (11,), (12,)], collective=False) as group:
        yield group


def kill(group: ActorGroup, rank: int) -> float:
    time.sleep(0.5)  # it has begun, most likely; what it is asked before it does ends in the same way
    os.kill(group.pids[rank], signal.SIGKILL)
    return time.monotonic()


def test_errors_and_late_answers_are_told_as_they_are_while_others_work(three):
    call = three.submit("refuse_on", 1, 1.0)
    assert first_done([call, three.submit_one(0, "sleep", 1.0)]) == [call]
    with pytest.raises(ConfigError, match="no luck on 1") as caught:
        call.results()
    assert "worker 1 of pool train" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match="Unpicklable: neither here nor there"):
        three.call_one(0, "odd_error")
    call = three.submit_one(2, "sleep", 1.0, seconds=0.2, option="some.option")
    with pytest.raises(WorkerTimeout, match=r"0\.2 s \(some\.option\) waiting for sleep of worker 2 of pool train"):
        call.result()
    assert three.call_one(0, "add", 0) == 0


def test_a_worker_killed_in_mid_call_is_noticed_at_once_and_replaced(three, tmp_path, monkeypatch):
    kept = three.submit_one(1, "pair", 200_000, keep=True)
    assert kept.result() == 200_000
    calls = [three.submit_one(rank, "sleep", seconds) for rank, seconds in ((1, LONG), (2, 0.0))]
    assert first_done(calls) == [calls[1]]  # worker 1 is busy
    start = kill(three, 1)
    with pytest.raises(WorkerDied, match="worker 1 of pool train died") as caught:
        calls[0].result()
    assert time.monotonic() - start < NOTICED
    assert (caught.value.pool, caught.value.rank) == ("train", 1)
    assert first_done(calls[:1]) == calls[:1]
    assert three.call_one(2, "total", kept.kept[1]) == sum(range(200_000))  # what it left outlives it
    assert three.call_one(0, "add", 0) == 0  # the others go on
    assert three.dead() == [1]
    with pytest.raises(WorkerDied):
        three.call_one(1, "count")
    place = three.call_one(0, "about")[0]
    monkeypatch.chdir(tmp_path)
    three.restart(1)
    assert three.restarts == 1
    assert three.call_one(1, "about") == (replace(place, rank=1, directory=str(tmp_path)), (11,))
    assert three.call_one(1, "environment", "CUDA_VISIBLE_DEVICES")["CUDA_VISIBLE_DEVICES"] == "", "its pool has none"
    assert three.call_one(1, "count") == 0
    assert three.dead() == []


@pytest.mark.thorough
def test_a_failed_device_is_a_death_and_nobody_waits_for_the_others(pools, monkeypatch):
    monkeypatch.setattr("burnish.runtime.actor_group.DAY", 0.1)
    options = replace(OPTIONS, max_restarts=1)
    with pools(options, train=2) as opened, ActorGroup(opened["train"], Toy, collective=True) as group:
        for _ in range(2):  # each is long past when the next one comes
            start, pids = time.monotonic(), list(group.pids)
            with pytest.raises(WorkerDied, match=r"worker 1 of pool train died: it can't go on: .*CUDA error"):
                group.call("fail_on", 1, LONG)
            assert time.monotonic() - start < NOTICED
            assert gone(pids[0], within=30)
            group.rebuild()
            time.sleep(0.2)
        assert group.call("add", 1) == [1, 2]
        assert group.restarts == 2
        with pytest.raises(WorkerTimeout, match="sleep_on of worker 0 of pool train") as caught:
            group.submit("sleep_on", 1, LONG, seconds=0.3).results()
        assert caught.value.pool == "train"
        assert all(map(gone, group.pids))


@pytest.mark.thorough
def test_a_worker_that_judges_is_asked_again_by_the_same_handle_until_the_limit(pools, tmp_path):
    with (
        pools(replace(OPTIONS, max_restarts=1), reward=1) as opened,
        ActorGroup(opened["reward"], Judging, [(tmp_path,)], collective=False, stateless=2) as group,
    ):
        scorer = PooledScorer({}, group.handles, first=0, seconds=SLOW)
        assert scorer.score(["a"], ["x"]) == (["a"], ["x"], 0)
        late = PooledScorer({}, group.handles, first=0, seconds=0.2).submit(["slow"], [])
        while not late.wait(SLOW):
            pass
        with pytest.raises(WorkerTimeout, match=r"0\.2 s \(ray\.call_timeout\) waiting for score"):
            late.result()
        first = scorer.submit(["slow"], [])
        assert not first.wait(0.1)
        assert scorer.score(["b"], []) == (["b"], [], 0), "two calls at once"
        os.kill(group.pids[0], signal.SIGKILL)
        assert first.result() == (["slow"], [], 0)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        with pytest.raises(RestartLimit, match=r"worker 0 of pool reward died.*ray\.max_restarts"):
            scorer.score(["c"], [])


BUCKET = 100  # bytes


@pytest.fixture(scope="module")
def sides(pools):
    with (
        pools(train=2, rollout=2) as opened,
        ActorGroup(opened["train"], Trains, [(BUCKET,)] * 2, collective=True) as trains,
        ActorGroup(opened["rollout"], Samples, [(BUCKET,)] * 2, collective=False) as samples,
    ):
        yield trains, samples


def syncs(sides) -> WeightSync:
    return WeightSync(*sides, SLOW)


def publish(sides, syncing: WeightSync, version: int) -> None:
    sides[0].call("learn", version)
    syncing.send(version, full=True)
    for rank in range(2):
        sides[1].call_one(rank, "receiver.switch", version)
    one, other = sides[1].call("seen")
    assert one == other


def test_a_changed_byte_stops_a_publication_and_who_dies_in_one_is_replaced(sides):
    trains, samples = sides
    syncing = syncs(sides)
    trains.call("learn", 3)
    samples.call_one(1, "spoil_next")
    with pytest.raises(Mismatch, match=r"weight sync v3: tensor lora\.a .* differs .* worker 1 of pool rollout"):
        syncing.send(3, full=True)
    samples.call_one(1, "repair")

    publish(sides, syncing, 3)
    os.kill(samples.pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        samples.call_one(0, "seen")
    samples.restart(0)
    syncing.send(3, full=True, to=[0])  # what the others have
    samples.call_one(0, "receiver.switch", 3)
    one, other = samples.call("seen")
    assert one == other
    publish(sides, syncing, 6)  # and the next broadcast reaches both

    pids = list(trains.pids)
    samples.call_one(1, "die_in_next")
    with pytest.raises(WorkerDied, match="worker 1 of pool rollout"):
        syncing.send(8, full=True)
    assert trains.pids == pids, "training survives"
    samples.restart(1)
    publish(sides, syncing, 8)


def test_the_object_store_keeps_a_batch(connection):
    batch = everything()
    stored = Stored.put(batch)
    read = stored.read(seconds=60)
    same(batch, read)
    read.wide.zero_()
    same(batch, StoredRows.to_all(stored).resolve(seconds=60))
    lying = ray.get(stored.reference).arrays
    assert not any(array.flags.writeable or array.flags.owndata for array in lying)


def test_what_a_cluster_lacks_is_told_before_or_when_time_is_up(connection, caplog):
    with pytest.raises(UserError, match="connected to a Ray cluster already"):
        with cluster(RayOptions(), PoolsOptions()):
            pass
    for pools, words in (
        (PoolsOptions(rollout=PoolOptions(nodes=2)), "pool rollout needs 2 machines"),
        (PoolsOptions(train=PoolOptions(device="cuda")), "pool train needs a machine with 1 CPU and 1 GPU"),
    ):
        with pytest.raises(Unschedulable, match=words):
            reserved(RayOptions(), pools, started=True).__enter__()
    options = RayOptions(placement_timeout=0.3)  # a running cluster gets time for machines to join
    with pytest.raises(Unschedulable, match=r"pool train needs .* 0\.3 s.* ray\.placement_timeout"):
        reserved(options, PoolsOptions(train=PoolOptions(processes=99)), started=False).__enter__()
    assert "0.3 s (ray.placement_timeout)" in caplog.text
    pools = PoolsOptions(train=PoolOptions(processes=9, cpus=0.49))  # more than half of all
    with reserved(RayOptions(), pools, started=True):
        with pytest.raises(Unschedulable, match=r"after 1 s .* place pool train.* others use what it needs"):
            reserved(RayOptions(placement_timeout=1.0), pools, started=True).__enter__()
    with reserved(RayOptions(placement_timeout=60.0), pools, started=True):
        pass  # what one gives back is there for the other


def test_ray_listens_on_this_machine_alone(connection):
    found = listening([os.getpid(), *descendants(os.getpid())])
    assert len(found) > 3
    assert reached_from_outside(found) == []


@pytest.mark.thorough
def test_a_cluster_of_the_run_s_own_is_this_machine_s_alone_and_goes_with_the_run(tmp_path):
    command = [sys.executable, "-m", "tests.support.own_cluster", str(tmp_path / "found.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())  # Ray prints whatever it likes
    assert found["handler kept"]
    assert found["listening"]
    assert reached_from_outside(set(found["listening"])) == []
    assert found["alive"] == []


def test_ray_is_asked_for_when_it_is_missing():
    code = "import importlib.util as u; u.find_spec = lambda name: None\nimport burnish.runtime"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "pip install 'burnish[ray]'" in done.stderr
