"""Whole runs on a pretended GPU, in one process, and what is asked of each of them."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.config import load
from burnish.loop import run
from burnish.models.flow.loading import ANY
from burnish.tasks import assemble
from burnish.training.sharding import local_shard
from tests.support.pretend_gpu import PretendGpu
from tests.support.time_columns import is_time_column
from tests.support.tiny_language import SEEING

PRECISIONS = ["float32", "bfloat16"]
# what the package reaches today; a GPU that is waited for stands still between kernels
WAITS_OF_A_STEP = 2  # its metrics, all at once, and which denoising steps its terms are
KIB_OF_A_PIPELINE = 192  # first latents, drawn on the CPU in every run of a pipeline; encoded prompts, which rest there
WAITS_OF_A_PIPELINE = 96  # diffusers' own code sends its timesteps to the GPU, and reads some back, for every prompt
WAITS_OF_A_TOWER = 32  # transformers' own vision towers read the grids of their pictures back, in every forward
KIB_OF_A_MICRO_BATCH, KIB_WITH_PICTURES = 24, 320  # with the prompts' embeddings, which rest on the CPU


def cells(names: Iterable[str], slow: Collection[str] = (), both: Collection[str] = ()) -> list[Any]:
    """Names and precisions of a test. Slow ones are thorough, and in float32 all but ``both``."""
    return [
        pytest.param(name, precision, marks=pytest.mark.thorough if rare or name in slow else ())
        for name in names
        for precision, rare in zip(PRECISIONS, (name not in both, False), strict=True)
    ]


@dataclass
class Outcome:
    """What became of a run."""

    assembly: Any
    metrics: list[dict[str, float]]  # of every update, without times
    asked: int  # how often sampling asked whether to go on: before every denoising step or token
    moved: int  # parameters that training has changed
    gpu: PretendGpu

    @property
    def micro_batches(self) -> int:
        """Backward passes of all updates."""
        return sum(self.gpu.backwards.values())


def train(recipe: Path, overrides: Sequence[str], *, device: str, updates: int = 2) -> Outcome:
    """Some updates of a run; counts are booked under the names that the run's stopwatch has for its parts."""
    gpu = PretendGpu()
    with gpu if device == "cuda" else _nothing():
        assembly = assemble(load(str(recipe), [*overrides, f"model.device={device}"]))
        assembly.trains = True
        assembly.check_data()
        assembly.check()
        assembly.watch.mark = gpu.during
        asked: Counter[str] = Counter()
        assembly.stop = lambda: bool(asked.update([gpu.phase]))
        before = {name: local_shard(value.detach()).clone() for name, value in assembly.roles.parameters().items()}
        told: list[dict[str, float]] = []
        run(
            range(1, updates + 1), assembly.source, assembly.workers, [lambda _, metrics: told.append(dict(metrics))],
            watch=assembly.watch, stop=lambda: False,
        )  # fmt: skip
        after = {name: local_shard(value.detach()) for name, value in assembly.roles.parameters().items()}
        moved = sum(not torch.equal(value, before[name]) for name, value in after.items())
        assert {value.device.type for value in after.values()} == {"cpu" if assembly.sharded else device}
    return Outcome(assembly, [_timeless(one) for one in told], asked["gen"], moved, gpu)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _smooth(metrics: dict[str, float]) -> dict[str, float]:
    """Without shares of what lies beyond a threshold: a term that lies at it may fall to either side."""
    return {name: value for name, value in metrics.items() if "frac" not in name and not name.endswith("_acc")}


def _timeless(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not is_time_column(name)}


def check(recipe: Path, overrides: Sequence[str], precision: str, *, waits: int = 0, beside_cpu: bool) -> Outcome:
    """A run that learns, draws nothing from the GPU's own generator, and in float32 tells what the CPU tells.

    Args:
        recipe: of the run.
        overrides: its options.
        precision: of the networks.
        waits: how often a micro-batch may wait for the GPU.
        beside_cpu: whether the same run on the CPU must tell the same in float32.
    """
    given = [*overrides, f"model.dtype={precision}"]
    outcome = train(recipe, given, device="cuda")
    for told in outcome.metrics:
        assert [name for name, value in told.items() if not math.isfinite(value)] == []
        assert told["actor/skipped_updates"] == 0
    assert outcome.moved, "no weight has moved"
    stay_within_budget(outcome, waits)
    assert not outcome.gpu.draws, "drawn from the GPU's own generator, which no other device repeats"
    if precision == "float32" and (beside_cpu or os.environ.get("BURNISH_THOROUGH")):
        expected = train(recipe, given, device="cpu").metrics
        assert len(expected) == len(outcome.metrics)
        for found, wanted in zip(map(_smooth, outcome.metrics), map(_smooth, expected), strict=True):
            assert found == pytest.approx(wanted, rel=1e-3, abs=1e-3)  # autograd takes other kernels here and there
    return outcome


def stay_within_budget(outcome: Outcome, of_a_micro_batch: int) -> None:
    """Waits of an update, and bytes that it sends to the GPU. What breaks the budget is named, line by line."""
    gpu, workers = outcome.gpu, outcome.assembly.workers
    waits, up = gpu.count("sync", "update_actor"), gpu.bytes("to device", "update_actor")
    model = outcome.assembly.roles.model
    sees = model.name in SEEING or "image" in getattr(model, "readable", ())
    steps = WAITS_OF_A_STEP + len(workers.groups)  # and the norm of each group's gradient
    of_a_micro_batch += WAITS_OF_A_TOWER if sees else 0
    of_a_micro_batch += WAITS_OF_A_PIPELINE if outcome.assembly.roles.model.name == ANY else 0
    allowed = steps * workers.optimizer_steps + of_a_micro_batch * outcome.micro_batches
    assert waits <= allowed, gpu.lines("sync", "update_actor")
    kib = KIB_WITH_PICTURES if sees else KIB_OF_A_MICRO_BATCH
    kib += KIB_OF_A_PIPELINE if outcome.assembly.roles.model.name == ANY else 0
    assert up <= kib * 1024 * outcome.micro_batches, gpu.lines("bytes to device", "update_actor")
