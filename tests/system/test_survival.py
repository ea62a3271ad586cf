"""The same run gives the same numbers, twice, and however often it is killed in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.runs import Runs, killed_at_calls, killed_at_random_moments, last_state, metrics_of

pytestmark = pytest.mark.slow

SMALL = [
    "steps=6", "data.train_batch_size=2", "rollout.n=3", "rollout.num_inference_steps=4", "validation.every=3",
    "validation.n=2", "validation.max_prompts=2", "checkpoint.every=2", "scoring.processes=0", "rewards.ocr=null",
    "rewards.jpeg_compressibility.weight=1", "ema.decay=0.5", "optimizer.warmup_steps=2",
]  # fmt: skip
ALGORITHMS = {
    "diffusion_nft": ["algorithm=diffusion_nft", "algorithm.train_timesteps=2", "algorithm.old_decay=linear_to_0_5"],
    "flow_grpo": ["algorithm=flow_grpo", "algorithm.kl_coef=0.01", "algorithm.window={kind: random, size: 2}"],
    "diffusion_dpo": [
        "algorithm=diffusion_dpo",
        "algorithm.train_timesteps=2",
        "supervised={train_files: 'burnish:quickstart/pictures.jsonl', batch_size: 4}",
    ],
}


@pytest.fixture(scope="module")
def runs():
    runs = Runs("quickstart")
    yield lambda folder, algorithm, *more, **death: runs(folder, [*SMALL, *ALGORITHMS[algorithm], *more], **death)
    runs.close()


PLACES = 9 if os.environ.get("BURNISH_THOROUGH") else 5  # where a run is killed while it saves
OTHERS = [pytest.param(name, marks=pytest.mark.thorough) for name in ("flow_grpo", "diffusion_dpo")]


@pytest.fixture(scope="module", params=["diffusion_nft", *OTHERS])
def uninterrupted(runs, request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    answer = runs(folder, request.param)
    assert answer["status"] == 0
    return request.param, folder, answer


def numbers(folder: Path) -> list[dict]:
    """Every line of metrics.jsonl without its time columns."""
    lines = metrics_of(folder)
    assert [line["training/global_step"] for line in lines] == list(range(7))
    judged = [line["training/global_step"] for line in lines if "val-core/default/reward/mean@2" in line]
    assert judged == [0, 3, 6]
    return lines


def assert_same(folder: Path, whole: Path) -> None:
    assert numbers(folder) == numbers(whole)
    assert last_state(folder) == last_state(whole)


def test_the_same_seed_gives_the_same_numbers(runs, uninterrupted, tmp_path):
    algorithm, whole, _ = uninterrupted
    assert runs(tmp_path / "again", algorithm)["status"] == 0
    assert numbers(tmp_path / "again") == numbers(whole)
    assert runs(tmp_path / "other", algorithm, "seed=1")["status"] == 0
    assert numbers(tmp_path / "other") != numbers(whole)


@pytest.mark.thorough
def test_killed_ten_times_at_random_moments(runs, uninterrupted, tmp_path):
    algorithm, whole, answer = uninterrupted
    killed_at_random_moments(
        lambda folder, **death: runs(folder, algorithm, **death), lambda folder: assert_same(folder, whole),
        tmp_path / "run", seed=algorithm, seconds=answer["seconds"], deaths=10, lives=60,
    )  # fmt: skip


def test_killed_at_every_state_of_saving(runs, uninterrupted, tmp_path):
    algorithm, whole, answer = uninterrupted
    calls = answer["calls"]
    assert calls > 40
    # an odd stride meets every kind of call of every checkpoint over the algorithms
    stride = max(calls // PLACES, 1) | 1
    offset = 3 if algorithm == "flow_grpo" else 1
    killed_at_calls(
        lambda folder, **death: runs(folder, algorithm, **death), lambda folder: assert_same(folder, whole), tmp_path,
        at=range(offset, calls, stride), deaths=PLACES - 2,
    )  # fmt: skip


@pytest.mark.thorough
def test_killed_while_it_is_saved_meanwhile(runs, uninterrupted, tmp_path):
    algorithm, whole, answer = uninterrupted
    if algorithm != "diffusion_nft":
        pytest.skip("one of them has everything that is saved")
    killed_at_calls(
        lambda folder, **death: runs(folder, algorithm, "checkpoint.asynchronous=true", **death),
        lambda folder: assert_same(folder, whole), tmp_path,
        at=range(5, answer["calls"], max(answer["calls"] // 9, 1) | 1), deaths=8,
    )  # fmt: skip


@pytest.mark.thorough  # a signal in every moment of a run is sent in test_stopping.py, one to a command in hostile/
def test_a_signal_saves_and_exits_with_75_and_the_run_goes_on(uninterrupted, tmp_path):
    algorithm, whole, _ = uninterrupted
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "burnish.cli", "train", "quickstart", *SMALL, *ALGORITHMS[algorithm],
               f"output_dir={folder}"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    metrics = folder / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM if algorithm == "flow_grpo" else signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert len(metrics.read_text().splitlines()) < 7
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=120, check=False).returncode == 0
    assert numbers(folder) == numbers(whole)
