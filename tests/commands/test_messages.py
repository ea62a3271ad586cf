"""What a run says before it begins agrees with what it does."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from burnish.commands.messages import opening_message, plan
from burnish.commands.train import train
from burnish.config import load
from burnish.config.run_folder import RunFolder
from burnish.report.summary import Summary


@pytest.mark.parametrize(
    ("recipe", "options", "expected"),
    [
        (
            "quickstart",
            [],
            ["60 updates of 96 pictures (data.train_batch_size 8 x rollout.n 12).",
             "An update is one optimizer step on all of its samples.",
             "The run: 5,760 pictures, 60 optimizer steps, 4.8 epochs over 100 prompts."],
        ),
        (
            "quickstart",
            ["algorithm=sft", "data.train_batch_size=50", "steps=3"],
            ["3 updates of 50 pictures (data.train_batch_size 50).",
             "An update is one optimizer step on all of its samples.",
             "The run: 150 pictures, 3 optimizer steps, 1.5 epochs over 100 pictures."],
        ),
        (
            "quickstart",
            ["algorithm=sft", "data.train_batch_size=1", "steps=1", "optimizer.warmup_steps=0"],
            ["1 update of 1 picture (data.train_batch_size 1).",
             "An update is one optimizer step on all of its samples.",
             "The run: 1 picture, 1 optimizer step, 0.01 epochs over 100 pictures."],
        ),
        (
            "vlm_quickstart",
            ["trainer.mini_batch_size=100", "trainer.epochs=2", "trainer.rollouts_per_update=3", "steps=10"],
            ["10 updates of 768 responses (data.train_batch_size 32 x trainer.rollouts_per_update 3 x rollout.n 8).",
             "An update is 16 optimizer steps of 100 samples (trainer.mini_batch_size, trainer.epochs 2); "
             "the last one of an epoch has 68.",
             "The run: 7,680 responses, 160 optimizer steps, 9.6 epochs over 100 prompts."],
        ),
    ],
)  # fmt: skip
def test_sizes_are_said_with_the_options_they_come_from(recipe: str, options: list[str], expected: list[str]) -> None:
    assert plan(load(recipe, options), 100) == expected


def test_what_is_not_counted_is_said() -> None:
    lines = plan(load("vlm_quickstart", ["algorithm=dapo"]), 100)
    assert "rollout.filter_groups" in lines[-1]


def test_a_run_that_goes_on_says_how_much_is_done() -> None:
    out = io.StringIO()
    added = ["rewards.border_darkness.weight=0.5"]
    opening_message(load("quickstart", added), 100, done=20, console=Console(file=out, width=200))
    assert "60 updates of 96 pictures" in out.getvalue()
    assert "\nRewards: ocr (weight 1), border_darkness (weight 0.5).\n" in out.getvalue()  # the recipe's stay
    assert "; 20 of them are done." in out.getvalue()


def test_the_run_does_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *args, **more: steps.append(1) or step(*args, **more))
    sizes = ["data.train_batch_size=3", "rollout.n=4", "trainer.mini_batch_size=8", "trainer.epochs=2", "steps=2"]
    quick = ["validation.every=0", "validation.max_prompts=2", "validation.n=1", "rollout.max_new_tokens=3"]
    config = load("vlm_quickstart", [*sizes, *quick, f"output_dir={tmp_path}/run"])
    assert train(config) == 0
    said = capsys.readouterr().out
    assert "2 updates of 12 responses" in said
    assert "The run: 24 responses, 8 optimizer steps" in said
    rows = Summary.read(RunFolder(config.output_dir)).rows
    assert sum(row.get("perf/total_num_responses", 0) for row in rows) == 24
    assert len(steps) == 8


@pytest.mark.parametrize(
    ("recipe", "options", "said"),
    [
        ("quickstart", ["rollout.merge_lora=true", "model.dtype=bfloat16"], "rollout.merge_lora=auto samples with"),
        ("quickstart", ["rollout.merge_lora=true"], None),
        ("quickstart", ["model.dtype=bfloat16"], None),
        (
            "vlm_quickstart",
            ["model.lora.rank=4", "model.dtype=bfloat16", "rollout.engine=vllm", "rollout.vllm.python=/bin/python3",
             "rollout.vllm.adapter=folded"],
            "rollout.engine=burnish samples with",
        ),
    ],
)  # fmt: skip
def test_a_run_says_that_its_sampler_rounds_adapters(recipe, options, said):
    out = io.StringIO()
    opening_message(load(recipe, options), 100, done=0, console=Console(file=out, width=2000))
    notes = [line for line in out.getvalue().splitlines() if line.startswith("Note: ")]
    assert len(notes) == (said is not None)
    assert all(said in note for note in notes)
