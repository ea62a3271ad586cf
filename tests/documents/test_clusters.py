"""Examples for clusters and the Docker file: their commands are accepted, their fields known, and they fit together.

Slurm, Ray and Burnish are played by a small program that writes down how it was called.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml

from burnish.cli import VERBS
from tests.support.command_lines import accept
from tests.support.shown import ROOT, commands, own_recipe

SCRIPT = ROOT / "examples" / "slurm.sbatch"
JOB = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text())
CLUSTER = JOB["spec"]["rayClusterSpec"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TRAINS = {"slurm": commands(SCRIPT.read_text())[0], "kubernetes": JOB["spec"]["entrypoint"]}
DOCKER = (ROOT / "Dockerfile").read_text()
LINES = [line.partition(" ")[::2] for line in DOCKER.replace("\\\n", " ").splitlines() if line and line[0] != "#"]
NUMBER = os.getpid()  # of the job; its port is made of it
DEADLINE = 60.0


@pytest.mark.parametrize("where", TRAINS)
def test_the_options_of_an_example_are_accepted(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_recipe(tmp_path)
    accept(TRAINS[where].replace("/shared/my_recipe", "my_recipe"))  # a folder that all machines share


def test_the_manifest_is_a_ray_job():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert CLUSTER["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0", "no worker is put on the head"
    for group in GROUPS:  # `ray start` takes texts only
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    # the job that submits it hands it to a shell of its own, in a pod without the volume
    assert not set(JOB["spec"]["entrypoint"]) & set("&|;<>$`\"'\n")


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
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
            "SLURM_JOB_ID": str(NUMBER), "SLURM_JOB_NODELIST": "one,two,three",
            "SLURM_CPUS_PER_TASK": "32", "SLURM_GPUS_ON_NODE": "8",
        }  # fmt: skip
        self.process = subprocess.Popen(
            ["bash", str(SCRIPT), "seed=3"], cwd=folder, env=environment, start_new_session=True
        )

    def wait_until_it_runs(self) -> None:
        until = time.monotonic() + DEADLINE
        while not Path(f"{self.calls_file}.running").exists():
            assert time.monotonic() < until, "the run was not started"
            assert self.process.poll() is None, f"the script ended with {self.process.returncode}"
            time.sleep(0.05)

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


def test_a_run_gets_a_head_workers_and_their_address_and_nothing_stays_behind(job):
    started = job()
    assert started.process.wait(DEADLINE) == 0
    address = f"127.0.0.1:{20000 + NUMBER % 20000}"
    head, others = started.calls("ray")
    assert head[:2] == ["start", "--head"]
    both = {"--num-cpus=32", "--num-gpus=8", "--block"}
    assert both | {"--node-ip-address=127.0.0.1", f"--port={address.partition(':')[2]}"} <= set(head)
    assert both | {f"--address={address}"} <= set(others)
    first, second = started.calls("srun")
    assert {"--nodes=1", "--ntasks=1", "--nodelist=one"} <= set(first)
    assert {"--nodes=2", "--ntasks=2", "--nodelist=two,three"} <= set(second)
    (run,) = started.calls("burnish")
    assert run[:2] == ["train", "my_recipe.yaml"]
    assert {"runtime=ray", f"ray.address={address}", "seed=3"} <= set(run)
    assert [call[0] for call in started.calls("scontrol")] == ["show"]  # it is done, and not queued again
    with pytest.raises(ProcessLookupError):
        os.killpg(started.process.pid, 0)


@pytest.mark.thorough
def test_a_stop_is_passed_on_and_the_job_queued_again(job):
    started = job(seconds=DEADLINE)
    started.wait_until_it_runs()
    started.process.send_signal(signal.SIGTERM)  # to the script alone, as --signal=B: does
    assert started.process.wait(DEADLINE) == 75
    assert started.calls("scontrol")[-1] == ["requeue", str(NUMBER)]


@pytest.mark.thorough
def test_a_run_that_fails_is_not_queued_again(job):
    started = job(code=2)
    assert started.process.wait(DEADLINE) == 2
    assert [call[0] for call in started.calls("scontrol")] == ["show"]


def values(instruction: str) -> list[str]:
    """What follows an instruction of the Docker file; there is no Docker where the tests run."""
    return [rest.strip() for name, rest in LINES if name == instruction]


def arguments() -> dict[str, str]:
    return {name: value.strip('"') for name, _, value in (one.partition("=") for one in values("ARG"))}


def test_an_image_has_the_versions_extras_and_command_of_the_package():
    version = re.fullmatch(r"python:(3\.\d+)-slim-\w+", values("FROM")[0])
    assert f"Programming Language :: Python :: {version[1]}" in PROJECT["classifiers"]
    assert f"TORCH ?= {arguments()['TORCH']}\n" in (ROOT / "Makefile").read_text()
    assert set(arguments()["EXTRAS"].split(",")) <= PROJECT["optional-dependencies"].keys() - {"dev"}
    assert values("ENTRYPOINT") == ['["burnish"]']
    assert values("CMD")[0].strip('[]"') in VERBS
