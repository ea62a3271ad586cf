"""A run that is stopped and goes on is one curve in trackers, validations and pictures included."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from burnish.commands.train import train
from burnish.config import load
from burnish.config.run_folder import STEP
from tests.support.tracked import wandb_history

SMALL = [
    "checkpoint.every=1", "validation.every=1", "validation.max_prompts=2", "validation.n=1", "scoring.processes=0",
    "validation.reference_guidance=null", "data.train_batch_size=2", "rollout.n=2",
    "optimizer.schedule=constant",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: pip install -e '.[wandb]'")
def test_a_run_and_its_continuation(tmp_path):
    given = [*SMALL, f"output_dir={tmp_path}", "trackers.wandb.mode=offline", "trackers.tensorboard=true"]
    for steps in (1, 2, 2):  # the last time there is nothing to do
        assert train(load("quickstart", [*given, f"steps={steps}"])) == 0
    rows = wandb_history(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len({name for name, _ in rows}) == 1
    assert [row["_step"] for _, row in rows] == [line[STEP] for line in lines] == [0, 1, 2]
    for (_, row), line in zip(rows, lines, strict=True):
        numbers = {name: value for name, value in line.items() if value is not None}
        assert {name: row[name] for name in numbers} == pytest.approx(numbers)
        assert row["val/samples/count"] == 2
    assert json.loads((tmp_path / "trackers" / "tensorboard.json").read_text())["step"] == 2
