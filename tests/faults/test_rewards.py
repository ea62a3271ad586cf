"""Runs whose rewards fail."""

import json
from pathlib import Path

from tests.support.tiny_run import TinyRun, burnish


def run_of(files: Path, name: str, *more: str) -> TinyRun:
    return TinyRun(files, "generators", "flux", "algorithm=flow_grpo", "rollout.n=2", *more, name=f"rewards/{name}")


def mine(name: str, **arguments: object) -> str:
    about = {"name": "function", "path": f"tests.support.bad_rewards:{name}", "arguments": arguments}
    return f"rewards.mine={json.dumps(about)}"


def test_a_reward_that_gives_up_ends_the_run_and_locks_nothing(files, tmp_path, caplog):
    run = run_of(files, "tires", "checkpoint.every=20")
    said = run.train("steps=6", mine("tires", folder=str(tmp_path)), status=2).message
    for words in ("trainer.max_skipped_updates=3", "mine: RuntimeError: tired", "prompts.txt:"):
        assert words in said
    assert caplog.text.count("Traceback (most recent call last)") == 1
    kept = [json.loads(line) for line in (run.output / "failures.jsonl").read_text().splitlines()]
    assert {line["update"] for line in kept} == {1, 2, 3, 4}
    assert all("RuntimeError: tired" in line["traceback"] for line in kept)
    assert "lower optimizer" not in (run.output / "report.md").read_text()
    assert not list(run.output.glob("checkpoints/0*"))


def test_what_nothing_could_be_judged_of_is_no_success(files, tmp_path, caplog):
    said = run_of(files, "nan", mine("gives_nan")).train("steps=2", status=2).message
    assert "all updates have no training signal" in said
    assert "nan" in said
    assert "no reward has a value for made-up images: its value is nan" in caplog.text
    run = run_of(files, "judged", mine("raises"))
    said = burnish("eval", run.recipe, *run.options[:1], mine("raises"), "-o", tmp_path / "judged", status=2).message
    assert "every reward is missing" in said
    assert json.loads((tmp_path / "judged" / "metrics.json").read_text())["val-aux/missing"] == 1
