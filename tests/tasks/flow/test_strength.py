"""A pipeline that begins from a picture takes fewer steps than it is asked for."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from burnish.cli import main
from burnish.flow.windows import Window
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.models.tiny.calls import picture
from burnish.options.flow import RolloutOptions
from burnish.tasks.flow.engine import FlowEngine
from burnish.utils.errors import UserError


@pytest.mark.slow
def test_it_is_trained_on_the_steps_that_it_takes(tmp_path):
    write(describe("flux-img2img"), tmp_path / "model", seed=0)
    picture(32, 32, 0).save(tmp_path / "a.png")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a red fox", "image": "a.png"}\n')
    recipe = {
        "model": {"path": str(tmp_path / "model"), "lora": {"rank": 2}},
        "data": {"train_files": str(tmp_path / "prompts.jsonl"), "train_batch_size": 1},
        "algorithm": "flow_grpo",
        "rewards": {"jpeg_compressibility": {"weight": 1}},
        "rollout": {"n": 2, "num_inference_steps": 6, "height": 32, "width": 32, "call": {"strength": 0.5}},
        "scoring": {"processes": 0},
        "steps": 1,
        "output_dir": str(tmp_path / "run"),
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    assert main(["train", str(tmp_path / "recipe.yaml")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["training/global_step"] for row in rows] == [0, 1]
    assert rows[1]["actor/grad_norm"] > 0


def test_a_window_that_needs_more_steps_is_refused_with_both_numbers():
    engine: Any = SimpleNamespace(seed=0, options=RolloutOptions(batch_size=96, num_inference_steps=4))
    recording = SimpleNamespace(window=Window(kind="fixed", size=2), kind="sde")
    job: Any = SimpleNamespace(
        prompts=[SimpleNamespace(uid="0")], group=torch.zeros(1, dtype=torch.long), recording=recording, update=1
    )
    assert FlowEngine._recorded(engine, job, 3).sum() == 2
    with pytest.raises(UserError, match=r"a window of 2 steps .*num_inference_steps 4 the pipeline takes 2"):
        FlowEngine._recorded(engine, job, 2)
