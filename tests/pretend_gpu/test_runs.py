"""Golden runs on a pretended GPU: they tell what they tell on the CPU, and wait for the device as seldom as may be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from burnish.config import load
from burnish.loop import run
from burnish.models.flow.loading import ANY
from burnish.tasks import assemble
from burnish.training.sharding import local_shard
from tests.golden.runs import HALVES, run_of
from tests.support.pretend_gpu import PretendGpu
from tests.support.time_columns import is_time_column

pytestmark = pytest.mark.slow

# each time, the first of each half in both precisions; all where there is time
OFTEN = [
    ("generators", "flow_grpo"), ("language", "grpo"), ("generators", "branch_grpo extreme"),
    ("generators", "diffusion_nft rising"), ("generators", "crd reference"), ("generators", "draft"),
    ("language", "grpo filters"), ("language", "grpo sliding windows"), ("language", "ppo warm"),
    ("language", "dpo given"),
]  # fmt: skip
# of a micro-batch: which of its samples are compared with each other, and pictures that are imitated for the first time
WAITS = {"crd": 6, "dgpo": 3, "flow_grpo supervised": 3, "tdm_r1": 2}
PRECISIONS = ["float32", "bfloat16"]
# what the package reaches today; a GPU that is waited for stands still between kernels
WAITS_OF_A_STEP = 2  # its metrics, all at once, and which denoising steps its terms are
WAITS_OF_A_PIPELINE = 96  # diffusers' own code sends its timesteps to the GPU, and reads some back, for every prompt
WAITS_OF_A_TOWER = 32  # transformers' own vision towers read the grids of their pictures back, in every forward
KIB_OF_A_MICRO_BATCH = 24
KIB_OF_A_PROMPT = {"generators": 600, "language": 100}  # its embeddings or its pictures, which rest on the CPU
FEATURES = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm", "internvl"}


def cells(half: str) -> list[Any]:
    """Names and precisions of a half."""
    first = next(name for place, name in OFTEN if place == half)
    return [
        pytest.param(
            name, precision,
            marks=() if (half, name) in OFTEN and (precision == "bfloat16" or name == first) else pytest.mark.thorough,
        )
        for name in HALVES[half]
        for precision in PRECISIONS
    ]  # fmt: skip


@dataclass
class Outcome:
    """What became of a run."""

    assembly: Any
    metrics: list[dict[str, float]]  # of every update, without times
    asked: int  # how often sampling asked whether to go on: before every denoising step or token
    moved: int  # parameters that training has changed
    gpu: PretendGpu

    def further(self, few: Outcome, kind: str) -> float:
        """What a denoising step, or a token, adds to a shorter run."""
        return (self.gpu.count(kind, "gen") - few.gpu.count(kind, "gen")) / (self.asked - few.asked)


def train(files: Path, half: str, name: str, *further: str, device: str = "cuda", updates: int = 2) -> Outcome:
    """Some updates of a run; counts are booked under the names that the run's stopwatch has for its parts."""
    gpu = PretendGpu()
    tiny = run_of(files, half, name)
    replaced = [option.split("=")[0] for option in further]
    given = [option for option in tiny.options if option.split("=")[0] not in replaced]
    with gpu if device == "cuda" else _nothing():
        assembly = assemble(load(str(tiny.recipe), [*given, *further, f"model.device={device}"]))
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
    timeless = [{name: value for name, value in one.items() if not is_time_column(name)} for one in told]
    return Outcome(assembly, timeless, asked["gen"], moved, gpu)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def check(files: Path, half: str, name: str, precision: str) -> None:
    """A run that learns, draws nothing from the GPU's own generator, and in float32 tells what the CPU tells."""
    updates = 1 if half == "generators" and precision == "bfloat16" else 2
    outcome = train(files, half, name, f"model.dtype={precision}", updates=updates)
    for told in outcome.metrics:
        assert [name for name, value in told.items() if not math.isfinite(value)] == []
        assert told["actor/skipped_updates"] == 0
    assert outcome.moved, "no weight has moved"
    stay_within_budget(outcome, half, name)
    assert not outcome.gpu.draws, "drawn from the GPU's own generator, which no other device repeats"
    if precision == "float32":
        expected = train(files, half, name, f"model.dtype={precision}", device="cpu").metrics
        for found, wanted in zip(map(_smooth, outcome.metrics), map(_smooth, expected), strict=True):
            assert found == pytest.approx(wanted, rel=1e-3, abs=1e-3)  # autograd takes other kernels here and there


def _smooth(metrics: dict[str, float]) -> dict[str, float]:
    """Without shares of what lies beyond a threshold: a term that lies at it may fall to either side."""
    return {name: value for name, value in metrics.items() if "frac" not in name and not name.endswith("_acc")}


def stay_within_budget(outcome: Outcome, half: str, name: str) -> None:
    """Waits of an update, and bytes that it sends to the GPU. What breaks the budget is named, line by line."""
    gpu, workers, kind = outcome.gpu, outcome.assembly.workers, outcome.assembly.roles.model.name
    micro_batches = sum(gpu.backwards.values())
    waits, sent = gpu.count("sync", "update_actor"), gpu.bytes("to device", "update_actor")
    steps = WAITS_OF_A_STEP + len(workers.groups)  # and the norm of each group's gradient
    of_a_micro_batch = WAITS.get(name, WAITS.get(name.split()[0], 0))
    of_a_micro_batch += WAITS_OF_A_TOWER if HALVES[half][name][0] in FEATURES else 0
    of_a_micro_batch += WAITS_OF_A_PIPELINE if kind == ANY else 0
    assert waits <= steps * workers.optimizer_steps + of_a_micro_batch * micro_batches, gpu.lines(
        "sync", "update_actor"
    )
    kib = KIB_OF_A_MICRO_BATCH + KIB_OF_A_PROMPT.get(half, 100) * 2
    assert sent <= kib * 1024 * micro_batches, gpu.lines("bytes to device", "update_actor")


@pytest.mark.parametrize(("name", "precision"), cells("generators"))
def test_a_generator(name: str, precision: str, files: Path) -> None:
    check(files, "generators", name, precision)


@pytest.mark.parametrize(("name", "precision"), cells("language"))
def test_a_language_model(name: str, precision: str, files: Path) -> None:
    check(files, "language", name, precision)


@pytest.mark.parametrize("name", ["flow_grpo sde", pytest.param("branch_grpo", marks=pytest.mark.thorough)])
def test_a_denoising_step_waits_for_nothing(name: str, files: Path) -> None:
    few, many = (
        train(files, "generators", name, "model.dtype=bfloat16", f"rollout.num_inference_steps={steps}", updates=1)
        for steps in (3, 6)
    )
    assert many.asked > few.asked
    assert many.further(few, "sync") == 0, many.gpu.lines("sync", "gen")
    # the noise of 8 pictures, and where its rows lie
    assert many.further(few, "bytes to device") <= 4096, many.gpu.lines("bytes to device", "gen")


@pytest.mark.parametrize(
    ("name", "waits"),
    [("ppo warm", 1), ("grpo filters", 3)],  # how many rows have ended; and the last tokens, for stop texts
)
def test_a_token_waits_once(name: str, waits: int, files: Path) -> None:
    few, many = (
        train(
            files, "language", name, "model.dtype=bfloat16", f"rollout.max_new_tokens={count}", "rollout.batch_size=64",
            updates=1,
        )
        for count in (5, 25)
    )  # fmt: skip
    assert many.asked >= few.asked + 20
    # wherever rows have ended, those that are left move together
    assert many.further(few, "sync") <= waits + 0.5, many.gpu.lines("sync", "gen")
    assert many.further(few, "bytes to device") <= 1024, many.gpu.lines("bytes to device", "gen")


def places(tensors: object) -> set[str]:
    return {local_shard(one).device.type for one in tensors if isinstance(one, torch.Tensor) and one.ndim}


def states(outcome: Outcome) -> list[torch.Tensor]:
    """Of the optimizers."""
    (group,) = outcome.assembly.workers.groups
    return [value for one in group.optimizers for state in one.state.values() for value in state.values()]


def test_frozen_parts_and_optimizer_states_rest_in_cpu_memory(files: Path) -> None:
    plain = train(files, "generators", "flow_grpo", "ema.decay=0.5")
    offload = [f"{part}.offload=true" for part in ("model", "optimizer", "ema")]
    saved = train(files, "generators", "flow_grpo", "ema.decay=0.5", *offload)
    assert saved.metrics == [pytest.approx(told, rel=1e-3, abs=1e-3) for told in plain.metrics]
    for outcome, place in ((plain, "cuda"), (saved, "cpu")):
        pipeline = outcome.assembly.roles.model.pipeline
        for part in (pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2):
            assert places(part.parameters()) == {place}, "the last thing that ran was a network that is trained"
        assert places(states(outcome)) == places(outcome.assembly.ema.average.values()) == {place}
        assert places(outcome.assembly.roles.parameters().values()) == {"cuda"}


@pytest.mark.thorough
def test_what_is_trained_rests_in_cpu_memory_and_comes_block_by_block(files: Path) -> None:
    one_step = ("trainer.mini_batch_size=null", "trainer.epochs=1")
    plain = train(files, "generators", "flow_grpo kl", *one_step)
    # FSDP finds weights that took the place of others, where PyTorch would keep the same objects
    with mock.patch("torch.__future__.get_swap_module_params_on_conversion", return_value=False):
        saved = train(files, "generators", "flow_grpo kl", *one_step, "sharding.offload=true")
    try:
        assert saved.metrics == [pytest.approx(told, rel=1e-4, abs=1e-6) for told in plain.metrics]
        for held in (saved.assembly.roles.parameters().values(), saved.assembly.ema.average.values(), states(saved)):
            assert places(held) == {"cpu"}
    finally:
        saved.assembly.close()
