"""Wrong configurations and inputs end with exit code 2 and one clear message, and leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import burnish.tasks.flow.assembly
from burnish.cli import main
from tests.support.factory import tiny_pipeline
from tests.support.runs import refused


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A recipe that would run, and files that would not."""
    folder = tmp_path_factory.mktemp("place")
    pipeline = tiny_pipeline(folder, vae=False)
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    (folder / "empty.txt").write_text("\n\n")
    (folder / "broken.jsonl").write_text('{"prompt": "a cat"}\n{"prompt": "two dogs"}\n{"prompt": "three\n')
    (folder / "keyless.jsonl").write_text('{"prompt": "a cat"}\n{"caption_": "two dogs"}\n')
    (folder / "latin.txt").write_bytes(b"a cat\ncaf\xe9\n")
    (folder / "long.txt").write_text("x" * 40 + "\n")
    (folder / "rewards.py").write_text("redness = 3\n")
    (folder / "not_a_pipeline").mkdir()
    (folder / "wan").mkdir()
    (folder / "wan" / "model_index.json").write_text(json.dumps({"_class_name": "WanPipeline"}))
    shutil.copytree(pipeline, folder / "gutted")
    shutil.rmtree(folder / "gutted" / "transformer")
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


REFUSED = {
    "typo": (["optimizer.lrr=1e-4"], ["optimizer.lrr", "optimizer.lr"]),
    "section typo": (["optimiser.lr=1e-4"], ["optimiser", "optimizer"]),
    "type": (["steps=many"], ["steps", "many", "whole number"]),
    "range": (["algorithm.clip=-1"], ["algorithm.clip", "-1"]),
    "choice": (["algorithm.transition=ddpm"], ["algorithm.transition", "ddpm", "cps"]),
    "contradiction": (["rollout.n=1"], ["rollout.n is 1", "compares samples"]),
    "window too long": (["algorithm.window={kind: fixed, size: 9}"], ["window", "9"]),
    "unread option": (["algorithm=diffusion_nft", "algorithm.noise_level=0.5"], ["noise_level", "flow_grpo"]),
    "option of a std that is not there": (
        ["algorithm.advantage_std=none", "algorithm.advantage_eps=0.1"],
        ["advantage_eps", "advantage_std is none"],
    ),
    "option without its switch": (["algorithm.kl_form=exact"], ["kl_form", "kl_coef"]),
    "unknown algorithm": (["algorithm=flow_grop"], ["flow_grop", "flow_grpo"]),
    "unknown reward": (["rewards.orc.weight=1"], ["orc", "ocr"]),
    "no reward": (["rewards.jpeg_compressibility.weight=0"], ["rewards", "weight"]),
    "reward function": (["rewards.function.path={place}/rewards.py:redness"], ["redness", "function"]),
    "answer for ocr": (["rewards.ocr.weight=1"], ["ocr", "a cat", "answer"]),
    "missing directory": (["model.path={place}/nowhere"], ["model.path", "nowhere"]),
    "not a pipeline": (["model.path={place}/not_a_pipeline"], ["model_index.json"]),
    "another pipeline": (["model.path={place}/wan"], ["WanPipeline", "can't be loaded"]),
    "half a pipeline": (["model.path={place}/gutted"], ["gutted", "transformer"]),
    "layer that is not there": (["model.lora.targets=[attn.to_q, attn.nope]"], ["model.lora.targets", "attn.nope"]),
    "no network": (["model.networks=[]"], ["model.networks is []", "transformer, or leave it out"]),
    "a network twice": (["model.networks=[transformer, transformer]"], ["model.networks is", "once"]),
    "network that is not there": (["model.networks=[nope]"], ["model.networks", "'nope'", "transformer"]),
    "network that reads": (
        ["model.networks=[text_encoder]"], ["'text_encoder', a CLIPTextModel", "no velocity; name transformer"],
    ),
    "size that can't be drawn": (["rollout.height=9"], ["rollout.height is 9", "8 or 10"]),
    "missing prompts": (["data.train_files={place}/nowhere.txt"], ["data.train_files", "nowhere.txt"]),
    "empty prompts": (["data.train_files={place}/empty.txt"], ["empty.txt", "no records"]),
    "broken JSON": (["data.train_files={place}/broken.jsonl"], ["broken.jsonl:3", "JSON"]),
    "record without prompt": (["data.train_files={place}/keyless.jsonl"], ["keyless.jsonl:2", "caption_"]),
    "not UTF-8": (["data.train_files={place}/latin.txt"], ["latin.txt:2", "UTF-8"]),
    "prompt too long": (["data.train_files={place}/long.txt"], ["xxxx", "tokens"]),
    "folder is a file": (["output_dir={place}/prompts.txt"], ["output_dir", "prompts.txt"]),
    "folder can't be written": (["output_dir=/proc/run"], ["output_dir", "/proc"]),
    "checkpoint that is not there": (["resume={place}/nowhere"], ["resume", "nowhere"]),
    "GPU that is not there": (["model.device=cuda"], ["model.device", "cuda"]),
}  # fmt: skip

WITH_MODEL = ("rollout.height", "/wan", "model.device")  # what only a loaded model can tell


@pytest.mark.parametrize(("overrides", "words"), REFUSED.values(), ids=list(REFUSED))
def test_refused_with_one_message(place, tmp_path, overrides, words, capsys, monkeypatch):
    import torch

    def load(*args, **more):
        raise AssertionError("weights are loaded")

    if not any(option in " ".join(overrides) for option in WITH_MODEL):
        monkeypatch.setattr(burnish.tasks.flow.assembly, "load_model", load)
    if "model.device=cuda" in overrides and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    refused(place, tmp_path, capsys, overrides, words)


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
