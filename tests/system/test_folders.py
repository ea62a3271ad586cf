"""A folder that holds a run already, and a disk that is full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli import main
from tests.support.factory import tiny_pipeline


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A recipe that runs."""
    folder = tmp_path_factory.mktemp("place")
    pipeline = tiny_pipeline(folder, vae=False)
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    recipe = {
        "model": {"path": str(pipeline), "lora": {"rank": 2}},
        "data": {"train_files": str(folder / "prompts.txt"), "train_batch_size": 2},
        "algorithm": {"name": "flow_grpo"},
        "rewards": {"jpeg_compressibility": {}},
        "rollout": {"n": 2, "num_inference_steps": 4, "max_sequence_length": 3},
        "scoring": {"processes": 0},
        "steps": 2,
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder


def test_a_folder_that_holds_a_run_is_neither_overwritten_nor_mixed(place, tmp_path, capsys):
    command = ["train", str(place / "recipe.yaml"), f"output_dir={tmp_path / 'run'}", "validation.every=0"]
    assert main(command) == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    assert main([*command, "resume=never"]) == 2
    assert "resume" in capsys.readouterr().err
    assert main([*command, "optimizer.lr=0.1"]) == 2
    assert "optimizer.lr" in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_a_full_disk_ends_in_one_message_and_the_run_goes_on_where_there_is_room(place, tmp_path, asynchronous):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("a small disk can't be mounted here")
    try:
        command = [sys.executable, "-m", "burnish.cli", "train", str(place / "recipe.yaml"), "model.lora=null",
                   f"output_dir={disk / 'run'}", "steps=6", "validation.every=0",
                   f"checkpoint={{every: 1, keep_last: 99, asynchronous: {asynchronous}}}"]  # fmt: skip
        run = {"capture_output": True, "text": True, "timeout": 120, "cwd": Path(__file__).parents[2], "check": False}
        done = subprocess.run(command, **run)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert f"no space is left in {disk / 'run' / 'checkpoints'}" in " ".join(done.stderr.split())
        saved = sorted(path.name for path in (disk / "run" / "checkpoints").iterdir())
        assert saved, "the disk is too small for a single one"
        assert all(name.isdecimal() for name in saved), "nothing is left half done"
        assert f"{saved[-1]} is intact" in " ".join(done.stderr.split())
        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        done = subprocess.run(command, **run)
        assert done.returncode == 0, done.stderr
        steps = [json.loads(line)["training/global_step"] for line in (disk / "run" / "metrics.jsonl").open()]
        assert steps == list(range(7))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
