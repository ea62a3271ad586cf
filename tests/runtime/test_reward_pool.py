"""Workers that judge: Ray replaces one that dies, its handle stays, and the call is made again, a few times."""

import os
import signal

import pytest

from burnish.options.cluster import RayOptions
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.faults import RestartLimit, WorkerTimeout
from burnish.runtime.reward_pool import PooledScorer
from tests.support.ray_runs import SLOW
from tests.support.toy_workers import Judging

pytestmark = pytest.mark.cluster


def test_a_worker_that_dies_is_asked_again_by_the_same_handle_until_the_limit(pools, tmp_path):
    options = RayOptions(address="local", start_timeout=SLOW, call_timeout=SLOW, max_restarts=1)
    with (
        pools(options=options, reward=1) as opened,
        ActorGroup(opened["reward"], Judging, [(tmp_path,)], collective=False, stateless=2) as group,
    ):
        scorer = PooledScorer({}, group.handles, first=0, seconds=SLOW)
        assert scorer.score(["a"], ["x"]) == (["a"], ["x"], 0)
        first = scorer.submit(["slow"], [])
        assert not first.wait(0.1)
        assert scorer.score(["b"], []) == (["b"], [], 0), "two calls at once"
        os.kill(group.pids[0], signal.SIGKILL)
        assert first.result() == (["slow"], [], 0)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        with pytest.raises(RestartLimit, match=r"worker 0 of pool reward died.*ray\.max_restarts"):
            scorer.score(["c"], [])


def test_a_worker_whose_device_fails_ends_itself_and_another_one_answers(pools, tmp_path):
    with (
        pools(reward=1) as opened,
        ActorGroup(opened["reward"], Judging, [(tmp_path,)], collective=False, stateless=1) as group,
    ):
        first = (tmp_path / "pid").read_text()
        scorer = PooledScorer({}, group.handles, first=0, seconds=SLOW)
        assert scorer.score(["broken"], []) == (["broken"], [], 0)
        assert (tmp_path / "pid").read_text() != first


def test_a_verdict_that_does_not_come_is_not_waited_for_without_end(pools, tmp_path):
    with (
        pools(reward=1) as opened,
        ActorGroup(opened["reward"], Judging, [(tmp_path,)], collective=False, stateless=1) as group,
    ):
        call = PooledScorer({}, group.handles, first=0, seconds=0.5).submit(["slow"], [])
        while not call.wait(SLOW):
            pass
        with pytest.raises(WorkerTimeout, match=r"timed out after 0\.5 s \(ray\.call_timeout\) waiting for score"):
            call.result()
