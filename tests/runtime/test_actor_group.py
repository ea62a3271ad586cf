"""Workers of a pool: called together, called one by one, dead, late, and replaced."""

import os
import signal
import time
from dataclasses import replace

import pytest

from burnish.options.cluster import RayOptions
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.calls import first_done
from burnish.runtime.faults import RestartLimit, WorkerDied, WorkerTimeout
from burnish.utils.errors import ConfigError
from tests.support.processes import gone
from tests.support.ray_runs import SLOW
from tests.support.toy_workers import Refusing, Toy

pytestmark = pytest.mark.cluster

NOTICED = 5.0  # seconds in which a death has to show: it takes 0.1 where the machine is idle
LONG = 600.0


@pytest.fixture(scope="module")
def three(pools):
    with pools(train=3) as opened, ActorGroup(opened["train"], Toy, [(10,), (11,), (12,)], collective=False) as group:
        yield group


def test_workers_know_their_places_and_answer_in_the_order_of_ranks(three):
    abouts = three.call("about")
    assert [place.rank for place, _ in abouts] == [0, 1, 2]
    assert [arguments for _, arguments in abouts] == [(10,), (11,), (12,)]
    assert len({(place.address, place.port, place.size, place.device) for place, _ in abouts}) == 1
    assert abouts[0][0].address.startswith("127.")
    before = three.call("count")
    assert three.call("add", 5) == [5, 6, 7]
    assert three.submit_each("add", [(1, 1), (2, 2), (3, 3)]).results() == [2, 5, 8]
    assert three.call_one(2, "add", 1) == 3
    assert [now - then for now, then in zip(three.call("count"), before, strict=True)] == [2, 2, 3]


def test_workers_leave_ctrl_c_to_the_driver_and_see_its_modules_and_threads(three, monkeypatch):
    assert three.call_one(0, "handler")
    for pid in three.pids:
        os.kill(pid, signal.SIGINT)
    found = three.call_one(1, "environment", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "HF_HUB_OFFLINE")
    assert found["OMP_WAIT_POLICY"] == os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
    assert found["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "1")
    assert found["HF_HUB_OFFLINE"] == os.environ.get("HF_HUB_OFFLINE")
    assert os.path.realpath(os.getcwd()) in found["path"]


def test_a_second_line_of_calls_does_not_wait_for_the_first(three):
    waiting = three.submit_one(0, "wait", LONG)
    assert not waiting.done()
    assert three.submit_one(0, "release", beside=True).result() is None
    assert waiting.result() is True


def test_a_worker_killed_in_mid_call_is_noticed_at_once_and_replaced(three):
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
    three.restart(1)
    assert three.call_one(1, "about") == (replace(place, rank=1), (11,))
    assert three.call_one(1, "count") == 0
    assert three.dead() == []


def test_an_error_of_one_worker_is_heard_while_others_work(three):
    call = three.submit("refuse_on", 1, 3.0)
    assert first_done([call, three.submit_one(0, "sleep", 3.0)]) == [call]
    with pytest.raises(ConfigError, match="no luck on 1"):
        call.results()


def test_a_late_answer_names_pool_worker_method_and_seconds(three):
    call = three.submit_one(2, "sleep", 1.0, seconds=0.5, option="some.option")
    with pytest.raises(
        WorkerTimeout, match=r"timed out after 0\.5 s \(some\.option\) waiting for sleep of worker 2 of pool train"
    ):
        call.result()
    assert three.call_one(0, "add", 0) == 0


def test_errors_of_workers_come_back_as_they_are(three):
    with pytest.raises(ConfigError, match="no luck on 1") as caught:
        three.call("refuse_on", 1, 0.0)
    assert "worker 1 of pool train" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match="Unpicklable: neither here nor there"):
        three.call_one(0, "odd_error")


def test_a_pool_whose_workers_wait_for_each_other_is_ended_and_rebuilt_together(pools):
    options = RayOptions(address="local", start_timeout=SLOW, call_timeout=SLOW, max_restarts=2)
    with (
        pools(options=options, train=2) as opened,
        ActorGroup(opened["train"], Refusing, [(-1,), (-1,)], collective=True) as group,
    ):
        call = group.submit("sleep_on", 1, LONG)  # worker 0 is to wait for worker 1 ...
        pids, start = list(group.pids), kill(group, 1)
        with pytest.raises(WorkerDied, match="worker 1"):
            call.results()
        assert time.monotonic() - start < NOTICED
        with pytest.raises(WorkerDied, match="the pool was ended: worker 1"):
            group.call("count")
        assert gone(pids[0], within=30)

        group.rebuild()
        assert not set(group.pids) & set(pids)
        with pytest.raises(ConfigError, match="no luck on 1"):
            group.call("refuse_on", 1, LONG)  # ... or for one that raised

        group.arguments = [(1,), (1,)]
        with pytest.raises(ConfigError, match="rank 1 has nothing to do"):
            group.rebuild()
        with pytest.raises(RestartLimit, match=r"ray\.max_restarts=2.*rank 1 has nothing to do"):
            group.rebuild()


def test_a_failed_device_is_a_death_and_nobody_waits_for_the_others(pools):
    options = RayOptions(address="local", start_timeout=SLOW, call_timeout=SLOW, max_restarts=1, restart_window=0.1)
    with (
        pools(options=options, train=2) as opened,
        ActorGroup(opened["train"], Toy, collective=True) as group,
    ):
        for _ in range(2):  # each is long past when the next one comes
            start, pids = time.monotonic(), list(group.pids)
            with pytest.raises(WorkerDied, match=r"worker 1 of pool train died: its device failed: .*CUDA error"):
                group.call("fail_on", 1, LONG)
            assert time.monotonic() - start < NOTICED
            assert gone(pids[0], within=30)
            group.rebuild()
            time.sleep(0.2)
        assert group.call("add", 1) == [1, 2]
        assert group.restarts == 2
        found = group.call_one(0, "environment", "CUDA_VISIBLE_DEVICES")
        assert found["CUDA_VISIBLE_DEVICES"] == "", "its pool has none"


def test_a_pool_whose_workers_wait_for_each_other_is_ended_when_one_is_late(pools):
    with pools(train=2) as opened, ActorGroup(opened["train"], Toy, collective=True) as group:
        with pytest.raises(WorkerTimeout, match="sleep_on of worker 0 of pool train") as caught:
            group.submit("sleep_on", 1, LONG, seconds=0.5).results()
        assert caught.value.pool == "train"
        assert all(map(gone, group.pids))


def kill(group: ActorGroup, rank: int) -> float:
    """Kill a worker; when it was."""
    time.sleep(1.0)  # it has begun, most likely; what it is asked before it does ends in the same way
    os.kill(group.pids[rank], signal.SIGKILL)
    return time.monotonic()
