"""Whole runs whose rewards fail: on time before the run, after a limit in its course; and what may start after them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.cli import main
from tests.support.factory import tiny_pipeline


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    content = {
        "model": {"path": str(tiny_pipeline(folder, vae=False)), "lora": {"rank": 2}},
        "data": {"train_files": str(folder / "prompts.txt"), "train_batch_size": 2},
        "algorithm": {"name": "flow_grpo"},
        "rewards": {"jpeg_compressibility": {}},
        "rollout": {"n": 2, "num_inference_steps": 3, "max_sequence_length": 16},
        "validation": {"every": 0, "n": 1},
        "scoring": {"processes": 0},
        "steps": 6,
    }
    (folder / "recipe.yaml").write_text(json.dumps(content))
    return folder / "recipe.yaml"


def train(recipe: Path, output: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    """Exit code and what was told about errors."""
    code = main(["train", str(recipe), f"output_dir={output}", *options])
    return code, " ".join(capsys.readouterr().err.split())


def mine(name: str, **arguments: object) -> str:
    return "rewards.mine=" + json.dumps(
        {"name": "function", "path": f"tests.support.bad_rewards:{name}", "arguments": arguments}
    )


@pytest.mark.parametrize("name", ["raises", "takes_no_prompts"])
def test_a_reward_that_never_works_is_refused_and_leaves_nothing_behind(recipe, tmp_path, capsys, name):
    code, told = train(recipe, tmp_path / "run", capsys, mine(name))
    assert code == 2
    assert f"{name}" in told
    assert "bad_rewards.py:" in told
    assert not (tmp_path / "run").exists()


def test_a_reward_that_gives_up_ends_the_run_and_locks_nothing(recipe, tmp_path, capsys, caplog):
    folder, calls = tmp_path / "run", tmp_path / "calls"
    calls.mkdir()
    code, told = train(recipe, folder, capsys, mine("tires", folder=str(calls)))
    assert code == 2
    assert "4 updates in a row have no training signal (trainer.max_empty_updates=3)" in told
    assert "mine: RuntimeError: tired" in told
    assert "prompts.txt:" in told
    assert caplog.text.count("Traceback (most recent call last)") == 1
    kept = [json.loads(line) for line in (folder / "failures.jsonl").read_text().splitlines()]
    assert {line["update"] for line in kept} == {1, 2, 3, 4}
    assert all("RuntimeError: tired" in line["traceback"] for line in kept)
    assert (folder / "report.html").exists()
    assert "lower optimizer.lr" not in (folder / "report.html").read_text()
    assert not list(folder.glob("checkpoints/0*"))

    # nothing was saved, so that other options do no harm; what was there is kept
    code, _ = train(recipe, folder, capsys, "optimizer.lr=1e-4", "steps=1")
    assert code == 0
    assert (folder / "earlier" / "1" / "failures.jsonl").exists()
    assert f"its files are now in {folder / 'earlier' / '1'}" in caplog.text
    assert not (folder / "failures.jsonl").exists()

    # now there is something to protect
    code, told = train(recipe, folder, capsys, "optimizer.lr=2e-4", "steps=1")
    assert code == 2
    assert "optimizer.lr" in told


def test_a_run_that_is_too_short_for_the_limit_is_no_success_either(recipe, tmp_path, capsys):
    code, told = train(recipe, tmp_path / "run", capsys, mine("gives_nan"), "steps=2")
    assert code == 2
    assert "all updates have no training signal" in told
    assert "gave nan, which is not finite" in told


def test_eval_does_not_pass_where_nothing_could_be_judged(recipe, tmp_path, capsys):
    code = main(["eval", str(recipe), mine("raises"), "-o", str(tmp_path / "judged")])
    told = " ".join(capsys.readouterr().err.split())
    assert code == 2
    assert "no sample has a reward" in told
    assert json.loads((tmp_path / "judged" / "metrics.json").read_text())["val-aux/missing"] == 1
