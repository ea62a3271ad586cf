"""What pages on one's own parts show works as it stands: in an empty folder, by name, on both quickstarts, on Ray."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.cli import __file__ as program
from burnish.cli import main
from tests.support.ray_runs import Forks
from tests.support.shown import ROOT, blocks

PAGES = [ROOT / "docs" / f"{name}.md" for name in ("extending", "own_reward", "own_algorithm")]
FILES = {block.title: block.text for page in PAGES for block in blocks(page) if block.title.endswith(".py")}
TINY = [
    "optimizer.schedule=constant",
    "rollout.n=2",
    "data.train_batch_size=2",
    "validation.n=1",
    "validation.every=0",
    "ema=null",
]
RAY = ["runtime=ray", "pools.rollout.processes=1", "pools.reward.processes=1"]
RUNS = {
    "drawing": [
        "quickstart", *TINY, "validation.reference_guidance=null", "model.lora.rank=2",
        "plugins=[redness.py, tidy_sd3.py, my_method.py]", "algorithm=plain_steps", "algorithm.scale=3",
        "model.family=tidy_sd3", "rewards.ocr=null", "rewards.redness={power: 2, least: 0.01}",
    ],
    "seeing": [
        "vlm_quickstart", *TINY, "validation.max_prompts=2", "trainer.mini_batch_size=null", "optimizer.warmup_steps=0",
        "plugins=[brevity.py, tidy_qwen.py, guessing.py, plain_tokens.py, short.py, squared.py]",
        "algorithm=plain_tokens", "algorithm.kl.kind=squared",
        "algorithm.advantage={name: length_penalised, price: 0.02}", "model.family=tidy_qwen2_5_vl",
        "rewards.format=null", "rewards.brevity={length: 20, unfinished: 0.1}", "environment.name=guessing",
        "rewards.environment.weight=1",
    ],
}  # fmt: skip
WATCHED = {"drawing": "redness", "seeing": "brevity"}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """An empty folder with the files of the page, and another one beside it."""
    folder = tmp_path_factory.mktemp("mine")
    for name, code in FILES.items():
        (folder / name).write_text(code)
    (folder / "elsewhere").mkdir()
    return folder


@pytest.fixture
def burnish(forks: Forks) -> Callable[..., str]:
    """What a command says, given as in a shell; its process has imported what runs import, and none of the files."""

    def said(where: Path, *words: str) -> str:
        done = subprocess.run(
            [*forks.command, program, *words],
            cwd=where, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return said


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_each_is_a_file_under_forty_lines():
    assert len(FILES) == 10
    for name, code in FILES.items():
        assert code.count("\n") < 40, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=[pytest.mark.thorough] if run == "seeing" else []) for run in RUNS]
)
def test_they_train_are_resumed_and_are_opened(run, place, burnish, monkeypatch):
    output = f"output_dir={run}"
    burnish(place, "train", *RUNS[run], output, "steps=1")
    burnish(place, "train", *RUNS[run], output, "steps=2")
    found = rows(place / run)
    assert [row["training/global_step"] for row in found] == [0, 1, 2]
    assert any(f"/{WATCHED[run]}/" in name for name in found[-1])
    said = burnish(place / "elsewhere", "eval", f"../{run}")
    assert WATCHED[run] in said
    assert f"plugins[0]={place}" in said
    monkeypatch.chdir(place / "elsewhere")
    assert main(["report", f"../{run}"]) == 0


@pytest.mark.thorough
@pytest.mark.cluster
@pytest.mark.parametrize("run", RUNS)
def test_they_train_on_a_cluster(run, place, burnish):
    pytest.importorskip("ray")
    burnish(place, "train", *RUNS[run], *RAY, f"output_dir={run}_ray", "steps=1")
    assert [row["training/global_step"] for row in rows(place / f"{run}_ray")] == [0, 1]
