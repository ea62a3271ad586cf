"""Connecting, starting and stopping Ray, and saying what a cluster lacks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.options.cluster import PoolOptions, PoolsOptions, RayOptions
from burnish.runtime.cluster import Cluster, cluster
from burnish.runtime.faults import Unschedulable
from burnish.utils.errors import UserError
from tests.support.processes import gone
from tests.support.sockets import reached_from_outside

ROOT = Path(__file__).parents[2]
LIMIT = 600.0  # seconds


def run(module: str, found: Path, *arguments: str) -> dict:
    """What a script of this folder leaves in a file; Ray prints whatever it likes beside."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.support.{module}", str(found), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(found.read_text())


@pytest.mark.cluster
def test_a_cluster_of_the_run_s_own_is_this_machine_s_alone_and_goes_with_the_run(tmp_path):
    found = run("own_cluster", tmp_path / "found.json", str(tmp_path / "new" / "timeline.json"))
    assert found["handler kept"]
    assert found["listening"]
    assert reached_from_outside(set(found["listening"])) == []
    assert found["alive"] == []
    assert any("sleep" in str(event) for event in json.loads((tmp_path / "new" / "timeline.json").read_text()))


@pytest.mark.cluster
@pytest.mark.thorough
def test_two_machines_of_which_one_is_lost(tmp_path):
    found = run("two_nodes", tmp_path / "found.json")
    assert found["machines"] == 2
    assert found["died"].startswith("worker 1 of pool rollout died")
    assert found["others"] == 0
    assert found["again"] == [0, 1]
    assert found["machines again"] == 2
    assert (
        "timed out after 5 s (ray.placement_timeout) waiting for the cluster to place pool rollout" in found["lacking"]
    )
    assert "needs 2 machines, each with 1 CPU, but only 1 of" in found["lacking"]


WRONG = """
import time
from burnish.utils.errors import UserError
from burnish.options.cluster import PoolsOptions, RayOptions
from burnish.runtime.cluster import cluster
start = time.monotonic()
try:
    with cluster(RayOptions(address="127.0.0.1:1"), PoolsOptions()):
        pass
except UserError as error:
    print(error, "after", "long" if time.monotonic() - start > 30 else "seconds")
"""


BEHEADED = """
import os, signal, time
from burnish.options.cluster import PoolsOptions, RayOptions
from burnish.runtime.cluster import cluster
from tests.support.ray_runs import descendants
with cluster(RayOptions(address="local"), PoolsOptions()):
    below = descendants(os.getpid())
    print(os.environ.get('RAY_COLOR_PREFIX'), *below, flush=True)
    (head,) = [pid for pid, command in below.items() if "gcs_server" in command.partition(" ")[0]]
    os.kill(head, signal.SIGKILL)
    time.sleep(600)
"""


@pytest.mark.cluster
def test_without_its_head_a_run_ends_soon_and_says_why():
    said = subprocess.run([sys.executable, "-c", BEHEADED], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert said.returncode == 1
    assert "is gone: [Errno 111] Connection refused; unless it comes back, Ray ends this process" in said.stderr
    assert "run the same command again to resume from the newest checkpoint" in said.stderr
    coloured, *below = said.stdout.split()
    assert coloured == "0"  # it does not write to a terminal
    assert gone(*map(int, below), within=120.0)


@pytest.mark.cluster
def test_nobody_answers_at_a_wrong_address():
    said = subprocess.run([sys.executable, "-c", WRONG], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert said.stdout.startswith("no Ray cluster at 127.0.0.1:1 "), said.stderr
    assert said.stdout.endswith("after seconds\n")


@pytest.mark.cluster
def test_a_second_connection_is_refused(connection):
    with pytest.raises(UserError, match="connected to a Ray cluster already"):
        with cluster(RayOptions(), PoolsOptions()):
            pass


@pytest.mark.cluster
def test_pools_that_can_never_be_placed_are_refused_before_anything_is_asked_for(connection):
    pools = PoolsOptions(rollout=PoolOptions(nodes=2))
    with pytest.raises(
        Unschedulable, match="pool rollout needs 2 machines, each with 1 CPU, but only 1 of 1 machines has that"
    ):
        Cluster(RayOptions(), pools, started=True).open()
    with pytest.raises(Unschedulable, match="pool train needs a machine with 1 CPU and 1 GPU"):
        Cluster(RayOptions(), PoolsOptions(train=PoolOptions(device="cuda")), started=True).open()


@pytest.mark.cluster
def test_a_running_cluster_gets_time_for_machines_to_join(connection, caplog):
    options = RayOptions(placement_timeout=0.5)
    with pytest.raises(Unschedulable, match=r"pool train needs .* \(waited 0\.5 s: ray\.placement_timeout\)"):
        Cluster(options, PoolsOptions(train=PoolOptions(processes=99)), started=False).open()
    assert "waiting up to 0.5 s (ray.placement_timeout) for machines to join: pool train needs" in caplog.text


@pytest.mark.cluster
def test_capacity_that_others_hold_is_told_apart_from_capacity_that_there_is_not(connection):
    pools = PoolsOptions(train=PoolOptions(processes=5))
    first = Cluster(RayOptions(), pools, started=True)
    first.open()
    second = Cluster(RayOptions(placement_timeout=2.0), pools, started=True)
    try:
        with pytest.raises(Unschedulable, match=r"timed out after 2 s .* place pool train.* others use what it needs"):
            second.open()
    finally:
        second.close()
        first.close()


def test_ray_is_asked_for_when_it_is_missing():
    code = "import importlib.util as u; u.find_spec = lambda name: None\nimport burnish.runtime"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "pip install 'burnish[ray]'" in done.stderr
