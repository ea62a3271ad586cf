"""A machine of the cluster is lost in mid-run: another takes its place, or the run says what it lacks and is saved."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from burnish.cli import main
from tests.support.ray_runs import ADAPTER, SEEING, Machines, assert_same, run, saved_updates

pytestmark = pytest.mark.cluster

ROOM = 15.0  # seconds that a machine may take to be there


@pytest.fixture
def nodes(forks, monkeypatch):
    from ray._private import ray_constants

    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
    found = Machines(0, forks)  # one that nobody works on
    found.join(1)
    found.join(1)
    yield found
    found.close()


@pytest.mark.thorough
def test_a_lost_machine(nodes, fate, tmp_path, capsys):
    given = ["vlm_quickstart", *SEEING, *ADAPTER]
    assert run(tmp_path / "local", *given) == 0
    given += [*nodes.options(placement_timeout=ROOM), "pools.rollout.processes=1"]

    def lose(group, rank, *, another):
        os.kill(group.pids[rank], signal.SIGSTOP)  # it must not be finished before its machine is gone
        if another:
            nodes.join(1)
        nodes.lose(*group.pool.machines())
        os.kill(group.pids[rank], signal.SIGKILL)

    # update 2 is asked for again after the first loss, so that the fifth time is for update 4
    fate.plan("rollout", "generate", 2, blow=partial(lose, another=True))
    fate.plan("rollout", "generate", 5, blow=partial(lose, another=False))
    assert main(["train", *given, f"output_dir={tmp_path / 'run'}"]) == 2
    assert fate.met()
    err = capsys.readouterr().err
    said = err.strip().splitlines()[-1]
    assert said.startswith(
        f"burnish: error: timed out after {ROOM:g} s (ray.placement_timeout) waiting for the cluster"
    )
    assert "which needs a machine with 1 CPU" in said
    assert "let more machines join the cluster" in said
    assert saved_updates(tmp_path / "run") == [2, 3], err
    nodes.join(1)
    assert run(tmp_path / "run", *given) == 0
    assert_same(tmp_path / "run", tmp_path / "local")
