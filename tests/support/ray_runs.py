"""Runs on a cluster, with the test's own process as their driver, and what befalls their workers."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from burnish.commands.train import train
from burnish.config import load
from tests.support.runs import metrics_of, state_of

if TYPE_CHECKING:
    from burnish.runtime.actor_group import ActorGroup

HERE = Path(__file__).parents[2]
SLOW = 300.0  # seconds that a busy machine may take for what takes a few
STEPS = 5
PER_RANK = "global_seqlen/"  # metrics of what each rank gets, which depend on how many there are
SEEING = [
    f"steps={STEPS}", "data.train_batch_size=4", "rollout.n=4", "rollout.max_new_tokens=4", "validation.every=0",
    "validation.n=1", "validation.max_prompts=4", "checkpoint.every=2", "scoring.processes=0",
    "optimizer.warmup_steps=2", "trainer.mini_batch_size=8", "mixing.normalise={}",
]  # fmt: skip
ADAPTER = ["model.lora.rank=2", "model.lora.targets=[q_proj, v_proj]"]
# Two ranks add up a gradient in another order than one, and two workers that sample share batches out in other widths:
# differences begin with the last bit of fp32, 1e-7. Adam's first steps divide by the gradient's own size, so they grow
# in weights whose gradient is next to nothing; after so few updates they are below
ROUNDING = 1e-3
NOTHING = 1e-9  # norm of rounding where what is exact is zero, as of the gradient of a bias that softmax ignores
STRIKE_AFTER = 0.05  # seconds after a worker was asked


class Forks:
    """A process that has imported what workers import, and a command that runs Python in a fork of it."""

    def __init__(self, folder: Path) -> None:
        door = folder / "door"
        self.command = [sys.executable, "-S", str(HERE / "tests/support/forks.py"), str(door)]
        self.environment = f"{{py_executable: {shlex.join(self.command)}}}"  # of Ray's workers
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forks", "serve", str(door)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def close(self) -> None:
        self.process.communicate(timeout=60)


class Machines:
    """A cluster that machines join and leave; it has one from the beginning, with so many CPUs as Ray counts them.

    Workers of runs on it are forks, so that they start at once."""

    def __init__(self, cpus: int, forks: Forks) -> None:
        self.environment = forks.environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.machines"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=HERE,
        )  # fmt: skip
        self.head = self.join(cpus)

    def join(self, cpus: int) -> str:
        return self._ask({"cpus": cpus})["machine"]

    def lose(self, machine: str) -> None:
        self._ask({"lost": machine})

    def close(self) -> None:
        self.process.communicate(timeout=60)

    def options(self, **more: Any) -> list[str]:
        """Of a run on it."""
        given = {"address": self.address, "init.runtime_env": self.environment, "placement_timeout": 60}
        given |= {"start_timeout": SLOW, "call_timeout": SLOW} | more
        return ["runtime=ray", *(f"ray.{name}={value}" for name, value in given.items())]

    def _ask(self, order: dict[str, Any]) -> dict[str, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        answer: dict[str, str] = json.loads(self.process.stdout.readline())
        self.address = answer["address"]
        return answer


def run(folder: Path, recipe: str, *options: str) -> int:
    """Train in this process, which may lead others: the exit code."""
    code = train(load(recipe, [*options, f"output_dir={folder}"]))
    assert not [one for one in threading.enumerate() if one.name.startswith("batch-")], "it still waits for samples"
    return code


Blow = Callable[["ActorGroup", int], None]


def kill(group: ActorGroup, rank: int) -> None:
    """A worker's process is killed while it does what it was asked."""
    pid = group.pids[rank]
    threading.Timer(STRIKE_AFTER, os.kill, (pid, signal.SIGKILL)).start()


def terminate(group: ActorGroup, rank: int) -> None:
    """The driver is asked to stop."""
    os.kill(os.getpid(), signal.SIGTERM)


class Fate:
    """What happens when a worker is asked something for the n-th time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._planned: dict[tuple[str, str, int, int], Blow] = {}
        self._asked: Counter[tuple[str, str, int]] = Counter()
        from burnish.runtime.actor_group import ActorGroup

        original = ActorGroup._ask

        def ask(group: ActorGroup, rank: int, method: str, *rest: Any) -> Any:
            answer = original(group, rank, method, *rest)
            about = (group.name, method, rank)
            self._asked[about] += 1
            if blow := self._planned.pop((*about, self._asked[about]), None):
                blow(group, rank)
            return answer

        patch.setattr(ActorGroup, "_ask", ask)

    def plan(self, pool: str, method: str, *numbers: int, rank: int = 0, blow: Blow = kill) -> None:
        """``numbers`` count from now on."""
        before = self._asked[pool, method, rank]
        for number in numbers:
            self._planned[pool, method, rank, before + number] = blow

    def met(self) -> bool:
        return not self._planned


def assert_close(folder: Path, other: Path, tolerance: float) -> None:
    """Metrics and saved tensors of two runs are the same up to rounding."""
    found, expected = metrics_of(folder), metrics_of(other)
    alone = [sorted(line.keys() ^ there.keys()) for line, there in zip(found, expected, strict=True)]
    assert not any(alone), f"metrics of one run alone, by update: {alone}"
    for step, (line, there) in enumerate(zip(found, expected, strict=True)):
        for name, value in there.items():
            if name.startswith(PER_RANK):
                continue
            assert (line[name] is None) == (value is None), f"{name} of update {step}"
            assert value is None or math.isclose(line[name], value, rel_tol=tolerance, abs_tol=tolerance), (
                f"{name} of update {step}: {line[name]} and {value}"
            )
    one, two = state_of(folder), state_of(other)
    assert one.keys() == two.keys()
    for name, value in two.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            apart, size = float((one[name] - value).norm()), float(value.norm())
            assert apart <= tolerance * size + NOTHING, f"{name} is {apart:g} apart, of {size:g}"


def saved_updates(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdecimal())
