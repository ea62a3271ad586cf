"""The script for Slurm starts Ray everywhere, gives the run its address, passes a stop on, and queues itself again.

Slurm, Ray and Burnish are played by a small program that writes down how it was called.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "slurm.sbatch"
JOB = os.getpid()  # the port is made of it
DEADLINE = 60.0
# srun runs what it is given; Ray's head listens; the run ends by itself, or with 75 when it is asked to stop
PLAYED = f"""#!{sys.executable}
import json, os, signal, socket, sys, time
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([name, *arguments]) + "\\n")
if name == "hostname":
    print("127.0.0.1 10.0.0.9")
elif name == "scontrol" and arguments[0] == "show":
    print("one\\ntwo\\nthree")
elif name == "srun":
    os.execvp("ray", arguments[arguments.index("ray"):])
elif name == "ray":
    with socket.socket() as listening:
        if "--head" in arguments:
            given = dict(word.removeprefix("--").partition("=")[::2] for word in arguments)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((given["node-ip-address"], int(given["port"])))
            listening.listen()
        time.sleep({DEADLINE})
elif name == "burnish":
    def stopped(*_):
        sys.exit(75)
    signal.signal(signal.SIGTERM, stopped)
    while open(os.environ["CALLS"]).read().count('["ray"') < 2:  # as a run waits for its machines
        time.sleep(0.05)
    open(os.environ["CALLS"] + ".running", "w").close()
    time.sleep(float(os.environ["RUN_SECONDS"]))
    sys.exit(int(os.environ["RUN_CODE"]))
"""


class Job:
    """The script as Slurm starts it."""

    def __init__(self, folder: Path, *, seconds: float = 0.0, code: int = 0) -> None:
        self.calls_file = folder / "calls"
        programs = folder / "bin"
        programs.mkdir()
        for name in ("srun", "scontrol", "hostname", "ray", "burnish"):
            (programs / name).write_text(PLAYED)
            (programs / name).chmod(0o755)
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "activate").write_text("")
        environment = os.environ | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "CALLS": str(self.calls_file), "RUN_SECONDS": str(seconds), "RUN_CODE": str(code),
            "SLURM_JOB_ID": str(JOB), "SLURM_JOB_NODELIST": "one,two,three",
            "SLURM_CPUS_PER_TASK": "32", "SLURM_GPUS_ON_NODE": "8",
        }  # fmt: skip
        self.process = subprocess.Popen(
            ["bash", str(SCRIPT), "seed=3"], cwd=folder, env=environment, start_new_session=True
        )

    def running(self) -> None:
        """Wait until the run is under way."""
        until = time.monotonic() + DEADLINE
        while not Path(f"{self.calls_file}.running").exists():
            assert time.monotonic() < until, "the run was not started"
            assert self.process.poll() is None, f"the script ended with {self.process.returncode}"
            time.sleep(0.05)

    def ended(self) -> int:
        return self.process.wait(DEADLINE)

    def calls(self, name: str) -> list[list[str]]:
        every = [json.loads(line) for line in self.calls_file.read_text().splitlines()]
        return [arguments for called, *arguments in every if called == name]


@pytest.fixture
def job(tmp_path):
    jobs = []

    def start(**how) -> Job:
        jobs.append(Job(tmp_path, **how))
        return jobs[-1]

    yield start
    for one in jobs:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait(DEADLINE)


def test_bash_can_read_it():
    done = subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_finds_nothing():
    done = subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout


def test_a_run_gets_a_head_workers_and_their_address(job):
    started = job()
    assert started.ended() == 0
    port = 20000 + JOB % 20000
    (head, others) = started.calls("ray")
    assert head[:2] == ["start", "--head"]
    assert {"--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=32", "--num-gpus=8", "--block"} <= set(head)
    assert {f"--address=127.0.0.1:{port}", "--num-cpus=32", "--num-gpus=8", "--block"} <= set(others)
    (first, second) = started.calls("srun")
    assert {"--nodes=1", "--ntasks=1", "--nodelist=one"} <= set(first)
    assert {"--nodes=2", "--ntasks=2", "--nodelist=two,three"} <= set(second)
    (run,) = started.calls("burnish")
    assert run[:2] == ["train", "my_recipe.yaml"]
    assert {"runtime=ray", f"ray.address=127.0.0.1:{port}", "seed=3"} <= set(run)
    assert [call[0] for call in started.calls("scontrol")] == ["show"]  # it is done, and not queued again


def test_a_stop_is_passed_on_and_the_job_queued_again(job):
    started = job(seconds=DEADLINE)
    started.running()
    started.process.send_signal(signal.SIGTERM)  # to the script alone, as --signal=B: does
    assert started.ended() == 75
    assert started.calls("scontrol")[-1] == ["requeue", str(JOB)]


def test_a_run_that_fails_is_not_queued_again(job):
    started = job(code=2)
    assert started.ended() == 2
    assert [call[0] for call in started.calls("scontrol")] == ["show"]


def test_nothing_stays_behind(job):
    started = job()
    started.ended()
    with pytest.raises(ProcessLookupError):
        os.killpg(started.process.pid, 0)
