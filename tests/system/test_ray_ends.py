"""A run on a Ray cluster of its own is stopped, is killed while it saves, and goes on to the same numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from burnish.hooks.stop import EXIT_STOPPED
from tests.support.ray_runs import ADAPTER, HERE, SEEING, SLOW, assert_same, descendants
from tests.support.sockets import reached_from_outside, watched

pytestmark = pytest.mark.cluster

OPTIONS = [*SEEING, *ADAPTER, "runtime=ray", "pools.train.processes=2"]
OPTIONS[OPTIONS.index("checkpoint.every=2")] = "checkpoint.every=1"
OPTIONS.remove("scoring.processes=0")


def start(folder: Path, *more: str, **how: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "burnish.cli", "train", "vlm_quickstart", *OPTIONS, *more, f"output_dir={folder}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE, **how)


def await_(what, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SLOW
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def gone(pids: list[int]) -> list[int]:
    """Those that are still there after a while."""
    deadline = time.monotonic() + 120
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def lines(folder: Path) -> int:
    """Of metrics, that are written."""
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def saving(folder: Path) -> bool:
    return any(path.name.startswith(".saving") for path in folder.glob("checkpoints/.saving*"))


@pytest.mark.thorough
def test_stopped_then_killed_while_it_saves_then_finished(forks, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    quick = ["scoring.processes=0", f"ray.runtime_env={forks.environment}"]
    healthy = start(whole, *quick)
    out, err = healthy.communicate(timeout=SLOW)
    assert healthy.returncode == 0, err
    stages = ("Reading ", "Loading ", "Checking ", "Validation")
    assert [line for line in err.splitlines() if not line.startswith(stages)] == []
    assert "Finished after 5 of 5 updates" in out
    assert "pid=" not in out

    stopped = start(folder, *quick)
    await_(lambda: lines(folder) >= 2, stopped)
    stopped.send_signal(signal.SIGTERM)
    _, err = stopped.communicate(timeout=SLOW)
    assert stopped.returncode == EXIT_STOPPED, err
    assert "SIGTERM" in err
    assert 2 <= lines(folder) < 6

    killed = start(folder, *quick)
    await_(lambda: saving(folder), killed)
    below, working = descendants(killed.pid), descendants(forks.process.pid)
    workers = [pid for pid, name in working.items() if name.startswith("ray::")]
    assert len(workers) == 2, working
    for pid in [killed.pid, *workers]:
        os.kill(pid, signal.SIGKILL)
    killed.communicate(timeout=SLOW)
    agents = [pid for pid, name in below.items() if "Agent" in name]
    assert not gone([*workers, *(pid for pid in below if pid not in agents)])

    resumed = start(folder, *quick)
    _, err = resumed.communicate(timeout=SLOW)
    assert resumed.returncode == 0, err
    assert_same(folder, whole)
    assert not gone(agents), "Ray's own look for their dead master for a minute"


@pytest.mark.thorough  # what Ray opens is looked at in test_cluster.py, what weights travel by in test_channel.py
def test_a_run_on_this_machine_alone_listens_on_loopback_for_its_whole_life(forks, tmp_path):
    """Ranks that train as one, a worker that samples, weights broadcast between them, and all that is Ray's."""
    given = ["scoring.processes=0", f"ray.runtime_env={forks.environment}"]
    given += ["pools.rollout.processes=1", "ray.publication.carrier=broadcast"]
    driver = start(tmp_path / "run", *given)
    with watched(driver.pid, forks.process.pid) as seen:
        _, err = driver.communicate(timeout=SLOW)
    assert driver.returncode == 0, err
    assert len(seen()) > 10  # Ray's own, two stores, and the members of two groups
    assert reached_from_outside(seen()) == []


@pytest.mark.thorough
def test_ctrl_c_reaches_the_driver_alone(tmp_path):
    """A terminal sends it to all processes; the second one ends them at once, with nothing left behind."""
    process = start(tmp_path / "run", "pools.reward.processes=1", "scoring.processes=1", start_new_session=True)
    await_(lambda: lines(tmp_path / "run") >= 2, process)
    below = descendants(process.pid)
    assert any(name.startswith("ray::RewardActor") for name in below.values())
    for pid, group in [(pid, os.getpgid(pid)) for pid in [process.pid, *below] if Path(f"/proc/{pid}").exists()]:
        if group == os.getpgid(process.pid):
            os.kill(pid, signal.SIGINT)
    _, err = process.communicate(timeout=SLOW)
    assert process.returncode == EXIT_STOPPED, err
    assert not gone(list(below))
    assert "Traceback" not in err
