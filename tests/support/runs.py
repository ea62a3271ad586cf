"""Runs in forks of one process that has imported everything, and what they leave behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from burnish.checkpoint.files import read
from burnish.training.saved import in_memory
from tests.support.time_columns import is_time_column


class Runs:
    """A process that forks a run of a recipe for every order."""

    def __init__(self, recipe: str) -> None:
        self.recipe = recipe
        command = [sys.executable, "-m", "tests.support.runner", recipe]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def __call__(
        self, output: Path, overrides: Sequence[str], *, die_after: float | None = None, die_at: int | None = None
    ) -> dict[str, Any]:
        """What became of a run: its status, the calls that it counted, its seconds."""
        given = [*overrides, f"output_dir={output}"]
        order = {"recipe": self.recipe, "overrides": given, "die_after": die_after, "die_at": die_at}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def killed_at_random_moments(
    live: Callable[..., dict[str, Any]], same: Callable[[Path], None], folder: Path, *, seed: str, seconds: float,
    deaths: int, lives: int,
) -> None:  # fmt: skip
    """A run that is killed ``deaths`` times or more, in at most ``lives`` lives, ends as the uninterrupted one did.

    Args:
        live: begins or resumes the run in a folder, and tells what became of it; takes ``die_after`` in seconds.
        same: raises if a folder holds another run than the uninterrupted one, which took ``seconds``.
        folder: of the run.
        seed: of the moments.
        seconds: of the uninterrupted run.
        deaths, lives: how many.
    """
    draw, killed, patience = random.Random(seed), 0, seconds
    for _ in range(lives):
        # every moment may be met; ever longer lives, so that a machine that got slower still comes to an end
        answer = live(folder, die_after=draw.uniform(0.1, patience))
        patience *= 1.04
        killed += answer["status"] == -signal.SIGKILL
        if answer["status"] == 0:
            same(folder)
            if killed >= deaths:
                return
            shutil.rmtree(folder)
    pytest.fail(f"the run was killed {killed} times and never came to its end")


def killed_at_calls(
    live: Callable[..., dict[str, Any]], same: Callable[[Path], None], place: Path, *, at: Iterable[int], deaths: int
) -> None:  # fmt: skip
    """Runs that are killed at calls that save, each at one of ``at``, go on and end as the uninterrupted one did."""
    killed = 0
    for die_at in at:
        folder = place / f"at{die_at}"
        killed += live(folder, die_at=die_at)["status"] == -signal.SIGKILL
        assert live(folder)["status"] == 0
        same(folder)
    assert killed >= deaths


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Every line of metrics.jsonl without its time columns."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not is_time_column(name)} for line in lines]


def last_state(folder: Path) -> dict[str, Any]:
    """The same as ``state_of``, tensors as bytes, so that bits are compared."""
    return {name: _bits(value) for name, value in state_of(folder).items()}


def state_of(folder: Path) -> dict[str, Any]:
    """Everything in the newest checkpoint by dotted names."""
    newest = max(path for path in (folder / "checkpoints").iterdir() if path.name.isdecimal())
    checkpoint = read(newest)
    return dict(_flat(in_memory(checkpoint.load(checkpoint.identity)), newest.name))


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        yield from _flat(dict(enumerate(value)), name)
    else:
        yield name, value


def _bits(value: Any) -> Any:
    return value.numpy().tobytes() if hasattr(value, "numpy") else value
