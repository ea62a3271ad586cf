"""What a run says before it begins and when it ends, and what `burnish runs` and `burnish compare` say of several."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import burnish as package
from burnish.commands.messages import closing_message, opening_message
from tests.support.reports import Story, edit, lines_of, plain, report, run_folder
from tests.support.tiny_run import TinyRun, burnish

BARE = Story(pictures=False)


def test_a_run_does_what_it_says(files, monkeypatch):
    steps, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *args, **more: steps.append(1) or step(*args, **more))
    run = TinyRun(
        files, "language", "llama", "algorithm=grpo", "data.train_batch_size=3", "rollout.n=4",
        "trainer.mini_batch_size=8", "rewards.even={name: function, path: '{files}/rewards.py:even', weight: 0.5}",
        "checkpoint.every=1", name="says",
    )  # fmt: skip
    said = run.train("steps=2").out
    assert "2 updates of 12 responses (data.train_batch_size 3 x rollout.n 4)." in said
    assert "4 optimizer steps of 8 samples (trainer.mini_batch_size, trainer.epochs 2)" in said
    assert "the last one of an epoch has 4" in said
    assert "24 responses, 8 optimizer steps, 2 epochs over 3 prompts." in said
    assert "Rewards: odd (weight 1), even (weight 0.5)." in said
    assert sum(row.get("perf/total_num_responses", 0) for row in lines_of(run.output / "metrics.jsonl")) == 24
    assert len(steps) == 8
    assert f"burnish sample {run.output}" in said
    again = run.train("steps=3").out
    assert "; 2 of them are done." in again
    shutil.move(run.output, files / "moved")  # gone on with where it is
    recipe = files / "moved" / "config.yaml"
    assert f"output_dir={files / 'moved'}" in burnish("train", recipe, "steps=4", status=2).message
    assert "Finished after 4 of 4" in burnish("train", recipe, "steps=4", f"output_dir={files / 'moved'}").out


OPENINGS = {  # recipe, options, and what is said with 100 records
    "one step": ("quickstart", ["algorithm=sft", "data.train_batch_size=1", "steps=1", "optimizer.warmup_steps=0"],
                 ["1 update of 1 picture (data.train_batch_size 1).", "one optimizer step on all of its samples",
                  "1 picture, 1 optimizer step, 0.01 epochs over 100 pictures."]),
    "pictures": ("quickstart", [], ["60 updates of 96 pictures", "5,760 pictures, 60 optimizer steps, 4.8 epochs"]),
    "rollouts": ("vlm_quickstart", ["trainer.rollouts_per_update=3", "steps=10"],
                 ["768 responses (data.train_batch_size 32 x trainer.rollouts_per_update 3 x rollout.n 8)"]),
    "filtered": ("vlm_quickstart", ["algorithm=dapo"], ["rollout.filter_groups"]),
    "rounded adapters": ("quickstart", ["rollout.merge_lora=true", "model.dtype=bfloat16"],
                         ["Note: ", "rollout.merge_lora=auto"]),
    "rounded in vLLM": ("vlm_quickstart", ["model.lora.rank=4", "model.dtype=bfloat16", "rollout.engine=vllm",
                        "rollout.vllm={python: /bin/python3, adapter: folded}"], ["Note: ", "rollout.engine=burnish"]),
}  # fmt: skip


@pytest.mark.parametrize(("recipe", "options", "words"), OPENINGS.values(), ids=list(OPENINGS))
def test_sizes_are_said_with_the_options_they_come_from(recipe, options, words):
    out = io.StringIO()
    opening_message(package.load(recipe, *options), 100, done=0, console=Console(file=out, width=2000))
    assert [word for word in words if word not in out.getvalue()] == []
    assert ("Note: " in out.getvalue()) == ("Note: " in words)


def closing(path, story: Story, *, width: int = 80, change=None) -> str:
    folder, out = run_folder(path, story), io.StringIO()
    if change is not None:
        edit(folder.metrics, change)
    config = replace(package.load("quickstart"), steps=story.steps, output_dir=str(path))
    outcome = "finished" if story.updates == story.steps else "stopped by SIGTERM"
    closing_message(folder, config, outcome, console=Console(file=out, width=width))
    return plain(out.getvalue())


def test_the_last_words_are_what_was_reached_at_what_price_and_what_can_be_done(tmp_path):
    text = closing(tmp_path / "[bold]run", BARE, width=200)
    assert "Finished after 30 of 30 updates" in text
    row = next(line for line in text.splitlines() if line.startswith("Validation reward"))
    assert row.split()[2:] == ["0.772", "0.965", "0.978"]
    assert text.index("at a price") < text.index("+ The validation reward") < text.index("− ")
    assert "[bold]run" in text, "markup in a name is text"
    assert "grid.png" not in text
    assert "checkpoints" not in text
    assert "burnish train" not in text.split("burnish sample")[0]
    stopped = closing(tmp_path / "stopped", replace(BARE, updates=13, steps=40))
    assert "Stopped by SIGTERM after 13 of 40 updates" in stopped
    assert stopped.index("burnish train") < stopped.index("burnish sample")
    begun = closing(tmp_path / "begun", Story(updates=0))
    assert "Validation reward" not in begun
    assert "burnish train" in begun


@pytest.mark.parametrize("width", [40, 200])
def test_commands_and_places_stay_on_one_line(tmp_path, width):
    path = tmp_path / "a folder with a long name and spaces"
    lines = closing(path, BARE, width=width).splitlines()
    assert any(line.endswith(f"burnish sample '{path}' \"a prompt\"") for line in lines)
    assert any(line.endswith(f"{path}/metrics.jsonl") for line in lines)
    assert any(line.endswith(f"burnish board {tmp_path}") for line in lines)


def test_watched_statistics_are_one_line_and_other_rewards_without_weight_are_rows(tmp_path):
    lines = closing(tmp_path / "run", BARE, change=lambda row: "val-aux/variety" in row and {
        "val-aux/default/file_size/mean@6": 17 - row["training/global_step"] / 30,
        "val-aux/default/watched_pickscore/mean@6": 0.2,
    }).splitlines()  # fmt: skip
    assert any(line.startswith("1 watched") and "File size" in line for line in lines)
    assert not any(line.startswith("File size") for line in lines)
    assert any(line.startswith("Watched pickscore") for line in lines)


@pytest.mark.parametrize(("overrides", "more"), [
    ((), " steps=60"), (("resume=never", "optimizer.schedule=constant"), " resume=auto steps=60"),
    (("optimizer.schedule=linear",), " steps=60 optimizer.schedule_updates=60"),
])  # fmt: skip
def test_a_run_can_be_made_longer_by_the_command_that_is_given(tmp_path, overrides, more):
    folder = run_folder(tmp_path / "run", replace(BARE, overrides=overrides))
    commands = [one["command"] for one in report(folder).run["next"]]
    assert f"burnish train {folder.config}{more}" in commands


def seeded(root, seed: int, **story: object):
    overrides = (f"seed={seed}", "optimizer.schedule=constant")
    return run_folder(root / f"[b]seed{seed}", replace(BARE, overrides=overrides, **story)).path


def test_runs_are_listed_with_what_they_reached_and_compared(tmp_path):
    first, second = seeded(tmp_path, 0), seeded(tmp_path, 1, updates=10)
    rows = {line.split()[0]: line.split() for line in burnish("runs", tmp_path).out.splitlines()[1:]}
    assert rows["[b]seed0"][1:6] == ["finished", "30/30", "0.965", "30", "0.965"]
    assert rows["[b]seed1"][1:3] == ["stopped", "10/30"]
    text = burnish("compare", first, second).out
    assert "0.772 → 0.965" in text
    assert "seed" in text.partition("Options that differ:")[2]
    others = [run_folder(tmp_path / name, replace(BARE, overrides=(f"algorithm={name}",))).path
              for name in ("diffusion_nft", "flow_grpo")]  # fmt: skip
    said = burnish("compare", *others).out.replace("\n", "")
    shared, *alone = said.partition("Options that differ:")[2].split("Only in ")
    assert "algorithm.name" in shared
    assert "–" not in shared
    assert [one.split(":")[0].split("/")[-1] for one in alone] == ["diffusion_nft", "flow_grpo"]
    assert "algorithm.noise_level=" in " ".join(alone[1].split())


def test_what_is_no_run_is_refused(tmp_path):
    for words in (["runs", "no_such"], ["compare", "no_such", "other"], ["runs", tmp_path]):
        assert str(words[1]) in burnish(*words, status=2).message.replace(" ", "")
    assert "two different runs" in burnish("compare", tmp_path, tmp_path, status=2).message
