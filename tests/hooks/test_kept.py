"""What a run keeps as it goes, also where it is killed or learns nothing."""

import shutil
from pathlib import Path

import pytest

from tests.support.tiny_run import TinyRun

GIVEN = ["algorithm=sft", "data.train_files={data}/responses.jsonl", "trainer.mini_batch_size=1"]
CUT = b'{"training/global_step": 3}\n{"training/global_step": 4, "actor/lo'


def run_of(files: Path, name: str, *more: str) -> TinyRun:
    return TinyRun(files, "language", "llama", *GIVEN, *more, name=f"kept/{name}")


def test_after_a_kill_at_any_byte_metrics_are_those_of_a_run_without_one(files):
    run = run_of(files, "whole", "checkpoint={every: 1, keep_last: 9}")
    run.train("steps=2")
    begun = Path(shutil.copytree(run.output, run.output.with_name("begun")))
    run.train("steps=4")
    whole, file = run.metrics, run.output / "metrics.jsonl"
    assert file.read_bytes().endswith(b"\n")
    kept = (begun / "metrics.jsonl").read_bytes()
    for cut in (kept + CUT, kept[:-1]):  # the second lacks only the end of its last line
        shutil.rmtree(run.output)
        shutil.copytree(begun, run.output)
        file.write_bytes(cut)
        run.train("steps=4")
        assert run.metrics == whole


@pytest.mark.parametrize(("given", "due"), [
    (["every=2"], [0, 2, 3]), (["every=2", "before=false"], [2, 3]), (["every=0", "before=false"], [3]),
    (["every=null"], [0]), (["every=null", "before=false"], []),
])  # fmt: skip
def test_validations_are_before_every_so_often_and_at_the_end_or_never(files, given, due):
    run = run_of(files, "validated", *(f"validation.{option}" for option in given))
    run.train()
    assert [line["training/global_step"] for line in run.metrics if any("val-core/" in name for name in line)] == due
    assert sorted(int(path.name) for path in run.output.glob("validation/*")) == due


def test_updates_in_a_row_whose_rewards_are_equal_end_the_run_with_the_cause(files, tmp_path):
    (tmp_path / "equal.py").write_text("def equal(samples, prompts):\n    return [0.5] * len(samples)\n")
    options = ["algorithm=dpo", "rewards.odd=null", "trainer.max_skipped_updates=1", "checkpoint.every=99"]
    options += [f"rewards.equal={{name: function, path: '{tmp_path / 'equal.py'}:equal'}}"]
    run = TinyRun(files, "language", "llama", *options, name="kept/equal")
    said = run.train("steps=20", status=2).message
    for words in ("trainer.max_skipped_updates", "equal"):
        assert words in said
    assert len(run.metrics) == 1 + 11, "they are borne ten times as long as those without any reward"
