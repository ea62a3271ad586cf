"""What a run says before it begins and when it ends, and what `burnish runs` and `burnish compare` say of several."""

import shutil
import time
from dataclasses import replace

import pytest
import torch

from burnish.utils.paths import CLAIM
from tests.support.reports import Story, lines_of, run_folder
from tests.support.tiny_run import TinyRun, burnish

BARE = Story(images=False)


def test_a_run_does_what_it_says(files, monkeypatch):
    steps, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *args, **more: steps.append(1) or step(*args, **more))
    run = TinyRun(
        files, "language", "llama", "algorithm=grpo", "data.train_batch_size=3", "rollout.n=4",
        "trainer.mini_batch_size=8", "rewards.even={name: function, path: '{files}/rewards.py:even', weight: 0.5}",
        "checkpoint.every=1", name="says",
    )  # fmt: skip
    begun = time.perf_counter()
    said = run.train("data.epochs=2").out
    took, lines = time.perf_counter() - begun, lines_of(run.output / "metrics.jsonl")
    assert "2 updates of 12 responses (data.train_batch_size 3 x rollout.n 4)." in said
    assert "4 optimizer steps of 8 samples (trainer.mini_batch_size, trainer.epochs 2)" in said
    assert "Rewards: odd (weight 1), even (weight 0.5)." in said
    assert sum(row.get("perf/total_num_responses", 0) for row in lines) == 24
    assert 0 < sum(row.get("timing_s/step", 0) for row in lines) < took
    assert len(steps) == 8
    assert f"burnish sample {run.output}" in said
    again = run.train("steps=3").out
    assert "; 2 of them are done." in again
    rows = lines_of(run.output / "metrics.jsonl")
    took = sum(row.get(f"timing_s/{name}", 0) for row in rows for name in ("step", "testing"))
    assert rows[-1]["perf/total_time"] == pytest.approx(took)
    assert (run.output / CLAIM).read_text().startswith("process "), "who trains here now, and nobody before"
    shutil.move(run.output, files / "moved")  # gone on with where it is
    recipe = files / "moved" / "config.yaml"
    assert f"output_dir={files / 'moved'}" in burnish("train", recipe, "steps=4", status=2).message
    assert "Finished after 4 of 4" in burnish("train", recipe, "steps=4", f"output_dir={files / 'moved'}").out


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
