"""Examples for clusters and the Docker file: their commands are accepted, their fields known, and they fit together.

Slurm, Ray and Burnish are played by a small program that writes down how it was called.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

import burnish
from burnish.cli import VERBS
from tests.support.command_lines import accept
from tests.support.shown import ROOT, commands, own_recipe, words

SCRIPT = ROOT / "examples" / "slurm.sbatch"
JOB = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text())
CLUSTER = JOB["spec"]["rayClusterSpec"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
PODS = [group["template"]["spec"] for group in GROUPS]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TRAINS = {"slurm": commands(SCRIPT.read_text())[0], "kubernetes": JOB["spec"]["entrypoint"]}
DOCKER = (ROOT / "Dockerfile").read_text()
LINES = [line.partition(" ")[::2] for line in DOCKER.replace("\\\n", " ").splitlines() if line and line[0] != "#"]
INSTALL = (ROOT / "docs" / "install.md").read_text()
NUMBER = os.getpid()  # of the job; its port is made of it
DEADLINE = 60.0


@pytest.mark.parametrize("where", TRAINS)
def test_the_options_of_an_example_are_accepted(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_recipe(tmp_path)
    accept(TRAINS[where].replace("/shared/my_recipe", "my_recipe"))  # a folder that all machines share


@pytest.mark.parametrize("where", TRAINS)
def test_the_pools_of_an_example_have_its_gpus(where, tmp_path):
    _, _, *overrides = words(TRAINS[where])
    pools = burnish.load(str(own_recipe(tmp_path)), *overrides).pools
    held = [pool.size * float(pool.gpus or 1) for pool in (pools.train, pools.rollout) if pool is not None]
    machines = of_slurm() if where == "slurm" else of_kubernetes()
    assert sum(held) == sum(gpus for _, _, gpus in machines)


def of_slurm() -> list[tuple[str, float, float]]:
    """The machines that the script asks for: address, CPUs, GPUs."""
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", SCRIPT.read_text(), re.M))
    cpus, gpus = float(asked["cpus-per-task"]), float(asked["gpus-per-node"])
    return [(f"10.0.0.{number}", cpus, gpus) for number in range(int(asked["nodes"]))]


def of_kubernetes() -> list[tuple[str, float, float]]:
    """The pods that the manifest asks for, without the head, which holds no workers."""
    nodes = []
    for group in CLUSTER["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        for number in range(group["replicas"]):
            nodes.append((f"{group['groupName']} {number}", float(limits["cpu"]), float(limits["nvidia.com/gpu"])))
    return nodes


def test_the_manifest_is_a_ray_job():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert CLUSTER["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0", "no worker is put on the head"
    for group in GROUPS:  # `ray start` takes texts only
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    # the job that submits it hands it to a shell of its own, in a pod without the volume
    assert not set(JOB["spec"]["entrypoint"]) & set("&|;<>$`\"'\n")


def test_every_pod_is_complete_and_has_the_volume_that_paths_are_on():
    paths = [word.partition("=")[2] or word for word in JOB["spec"]["entrypoint"].split() if "/" in word]
    assert len(paths) == 2  # the recipe and output_dir
    for pod in PODS:
        (container,) = pod["containers"]
        requested, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert requested == limits  # Kubernetes wants it so of GPUs; and no pod is ended for using what it asked for
        assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
        mounts = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "shared"]
        assert mounts
        assert all(path.startswith(tuple(f"{mount}/" for mount in mounts)) for path in paths)


def test_the_version_of_ray_is_one_that_burnish_takes():
    (wanted,) = [one for one in PROJECT["optional-dependencies"]["ray"] if one.startswith("ray")]
    lowest, below = re.fullmatch(r"ray>=([\d.]+),<([\d.]+)", wanted).groups()
    low, own, high = (tuple(map(int, one.split("."))) for one in (lowest, CLUSTER["rayVersion"], below))
    assert low <= own < high


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


def test_a_stop_is_passed_on_and_the_job_queued_again(job):
    started = job(seconds=DEADLINE)
    started.wait_until_it_runs()
    started.process.send_signal(signal.SIGTERM)  # to the script alone, as --signal=B: does
    assert started.process.wait(DEADLINE) == 75
    assert started.calls("scontrol")[-1] == ["requeue", str(NUMBER)]


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


def test_an_image_copies_what_the_wheel_is_built_from_and_fetches_nothing_else():
    copied = {word for one in values("COPY") for word in one.split()[:-1]}
    assert copied == {"pyproject.toml", "burnish", PROJECT["readme"], *PROJECT["license-files"]}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == copied
    assert values("USER") == ["1000:1000"]
    assert not [line for line in values("RUN") if re.search(r"curl|wget|git clone|http:|sudo|SECRET", line)]
    assert "TOKEN" not in DOCKER


def test_commands_of_docker_that_are_shown_fit_the_image():
    shown = re.findall(r"^docker (?:build|run) .*$", INSTALL.replace("\\\n", " "), re.M)
    assert {line.split()[1] for line in shown} == {"build", "run"}
    made = " ".join(values("RUN") + values("WORKDIR"))
    for line in shown:
        given = shlex.split(line, comments=True)
        if given[1] == "build":
            assert {word.partition("=")[0] for flag, word in pairwise(given) if flag == "--build-arg"} <= set(
                arguments()
            )
            assert given[-1] == "."
            continue
        assert given[given.index("burnish") + 1] in VERBS
        mounts = [word.rpartition(":")[2] for flag, word in pairwise(given) if flag == "-v"]
        assert all(f"/{mount.split('/')[1]}" in made for mount in mounts)
