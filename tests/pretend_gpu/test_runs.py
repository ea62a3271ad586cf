"""Golden runs on a pretended GPU: they tell what they tell on the CPU, and wait for the device as seldom as may be."""

import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.golden.runs import HALVES, run_of
from tests.support.optional import seldom
from tests.support.pretend_gpu import PretendGpu
from tests.support.tiny_run import TinyRun

pytestmark = pytest.mark.slow

# each time, and one in both precisions; all where there is time
OFTEN = [
    ("generators", "flow_grpo"), ("language", "grpo"), ("generators", "branch_grpo extreme"),
    ("generators", "diffusion_nft slow"), ("generators", "crd reference"), ("generators", "draft"),
    ("language", "grpo filters"), ("language", "grpo kl"), ("language", "ppo warm"),
    ("language", "dpo given"),
]  # fmt: skip
SHORT = ["steps=2", "forecast=off", "optimizer.warmup_steps=0", "validation.before=false", "validation.every=null"]


def cells(half: str) -> list[Any]:
    return [
        pytest.param(
            half, name, precision,
            marks=() if (half, name) in OFTEN and (precision == "bfloat16" or name == "grpo") else pytest.mark.thorough,
        )
        for name in HALVES[half]
        for precision in ("float32", "bfloat16")
    ]  # fmt: skip


def train(files: Path, half: str, name: str, *options: str, device: str = "cuda") -> tuple[TinyRun, PretendGpu]:
    """A golden run of two updates on the pretended GPU or on the CPU; of an option that is given twice the last one."""
    run, gpu = run_of(files, half, name), PretendGpu()
    given = {one.partition("=")[0]: one for one in (*SHORT, f"model.device={device}", *options)}
    kept = [(one.partition("=")[0], one) for one in run.options]
    run.options = [one for name, one in kept if name not in given and not name.startswith("validation.")]
    if device == "cpu":
        run.train(*given.values())
    else:
        with gpu:
            run.train(*given.values())
    return run, gpu


def near(run: TinyRun, other: TinyRun, within: float) -> bool:
    """Whether metrics agree, but for shares of what lies beyond a threshold: terms at it may fall to either side."""

    def smooth(line: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in line.items() if "frac" not in name and not name.endswith("_acc")}

    pairs = zip(map(smooth, run.metrics), map(smooth, other.metrics), strict=True)
    return all(one == pytest.approx(two, rel=within, abs=within) for one, two in pairs)


@pytest.mark.parametrize(("half", "name", "precision"), [*cells("generators"), *cells("language")])
def test_a_run_learns_and_tells_what_the_cpu_tells(half: str, name: str, precision: str, files: Path) -> None:
    steps = 1 if half == "generators" and precision == "bfloat16" else 2
    run, gpu = train(files, half, name, f"model.dtype={precision}", f"steps={steps}")
    for told in run.metrics:
        assert [name for name, value in told.items() if value is not None and not math.isfinite(value)] == []
        assert told.get("actor/skipped_updates", 0) == 0
    assert max(told.get("actor/grad_norm") or 0 for told in run.metrics) > 0
    assert not gpu.draws, "drawn from the GPU's own generator, which no other device repeats"
    if precision == "float32":
        assert near(run, train(files, half, name, f"model.dtype={precision}", device="cpu")[0], 1e-3)


@pytest.mark.parametrize(
    ("half", "name", "option", "few", "many", "waits", "sent"),
    [
        # every eighth token how many rows have ended; and the last tokens, for stop texts
        ("language", "gspo", "rollout.max_new_tokens", 5, 25, 0.3, 2048),
        *seldom(("language", "grpo filters", "rollout.max_new_tokens", 5, 25, 1, 2048)),
        # an optimizer step reads its metrics all at once, which denoising steps its terms are, and the gradient's norm
        *seldom(
            *(
                ("generators", name, "trainer.epochs", 1, 5, 4, 600 * 1024)
                for name in ("flow_grpo sde", "diffusion_nft", "crd", "dgpo", "tdm_r1", "draft", "srpo", "distill")
            )
        ),
        ("language", "grpo kl", "trainer.epochs", 1, 5, 4, 24 * 1024),
    ],
)
def test_further_steps_and_tokens_hardly_wait(
    half: str, name: str, option: str, few: int, many: int, waits: float, sent: int, files: Path
) -> None:
    """By how much a longer run waits longer, for each step or token that it has more."""
    given = ["steps=1", "model.dtype=bfloat16", "rollout.batch_size=64"]
    counts = [train(files, half, name, *given, f"{option}={number}")[1] for number in (few, many)]
    for kind, most in (("sync", waits), ("bytes to device", sent)):
        further = (counts[1].count(kind) - counts[0].count(kind)) / (many - few)
        assert further <= most, counts[1].lines(kind)


@pytest.mark.thorough
@pytest.mark.parametrize("offloaded", ["model optimizer ema", "sharding"])
def test_what_rests_in_cpu_memory_changes_no_number(offloaded: str, files: Path) -> None:
    one_step = ["trainer.mini_batch_size=null", "trainer.epochs=1", "ema.decay=0.5"]
    plain, stays = train(files, "generators", "flow_grpo kl", *one_step)
    told = plain.metrics
    # a module is moved by replacing what its parameters hold; on a real GPU PyTorch would keep the same objects
    with mock.patch("torch.__future__.get_swap_module_params_on_conversion", return_value=False):
        offload = [f"{part}.offload=true" for part in offloaded.split()]
        saved, moves = train(files, "generators", "flow_grpo kl", *one_step, *offload)
    assert saved.metrics == [pytest.approx(line, rel=1e-3, abs=1e-3) for line in told]
    assert moves.bytes("to device") > stays.bytes("to device")
