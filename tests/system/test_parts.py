"""Parts of runs: plugins of the pages, recordings, exports, learned rewards."""

import gzip
import json

import pytest
import yaml

from tests.support.optional import seldom
from tests.support.runs import last_state
from tests.support.scorers import checkpoint
from tests.support.shown import ROOT, blocks
from tests.support.tiny_run import TinyRun, burnish

PAGES = [ROOT / "docs" / f"{name}.md" for name in ("extending", "own_reward", "own_algorithm")]
SHOWN = {block.title: block.text for page in PAGES for block in blocks(page) if block.title.endswith(".py")}
DRAWING, SEEING = yaml.safe_load((ROOT / "tests/system/own_parts.yaml").read_text()).values()


@pytest.mark.parametrize(
    ("half", "model", "options", "watched"),
    [("generators", "sd3", DRAWING, "redness"), *seldom(("language", "qwen2_5_vl", SEEING, "brevity"))],
    ids=["drawing", "seeing"],
)
def test_plugins_that_pages_show_train_are_resumed_and_opened(
    files, tmp_path, monkeypatch, half, model, options, watched
):
    assert len(SHOWN) == 11
    for name, code in SHOWN.items():
        assert code.count("\n") < 40, name
        (tmp_path / name).write_text(code)
    (tmp_path / "elsewhere").mkdir()
    run = TinyRun(files, half, model, name=f"plugins/{half}")
    given = ["train", run.recipe, *options, f"output_dir={tmp_path / 'run'}"]
    monkeypatch.setattr("tests.support.tiny_run.ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    burnish(*given, "steps=1")
    burnish(*given, "steps=2")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["training/global_step"] for row in rows] == [0, 1, 2]
    assert any(f"/{watched}/" in name for name in rows[-1])
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert watched in burnish("eval", "../run").out
    burnish("report", "../run")


def test_recording_changes_nothing(files):
    more = ["algorithm=flow_grpo", "validation.every=1", "validation.max_prompts=1"]
    recorded, plain = (TinyRun(files, "generators", "flux", *more, name=name) for name in ("recorded", "plain"))
    plain.train("steps=2")
    recorded.train("steps=1")  # and a run goes on when it is recorded from now on
    said = recorded.train("profiler.steps=[2]", "steps=2").out
    assert recorded.metrics == plain.metrics
    assert last_state(recorded.output) == last_state(plain.output)
    assert not (plain.output / "profiles").exists()
    (trace,) = [path for path in (recorded.output / "profiles").rglob("*") if path.is_file()]
    assert trace.relative_to(recorded.output).as_posix() == "profiles/update-00000002/local-0.json.gz"
    with gzip.open(trace, "rt") as opened:
        names = {event["name"] for event in json.load(opened)["traceEvents"]}
    timed = json.loads((recorded.output / "metrics.jsonl").read_text().splitlines()[2])
    phases = {name.removeprefix("timing_s/") for name in timed if name.startswith("timing_s/")}
    assert {"step", "gen", "reward", "old_log_prob", "adv", "update_actor", "update_weights"} <= names & phases
    assert str(trace.parents[1]) in said


@pytest.mark.thorough
def test_every_checkpoint_is_exported_as_by_hand(files, tmp_path):
    run = TinyRun(files, "generators", "flux", "algorithm=flow_grpo", "checkpoint.every=1", name="exported")
    run.train("checkpoint.export=merged", "steps=2", "validation.before=false")
    assert sorted(path.name for path in (run.output / "exported").iterdir()) == ["00000001", "00000002"]
    burnish("export", run.output, "--output", tmp_path / "by_hand")
    name = "transformer/diffusion_pytorch_model.safetensors"
    assert (run.output / "exported" / "00000002" / name).read_bytes() == (tmp_path / "by_hand" / name).read_bytes()


def test_draft_follows_learned_rewards(files):
    more = ["rewards.brightness=null", "trainer.mini_batch_size=null", "trainer.epochs=1", "algorithm.last_steps=2"]
    scorers = [f"rewards.{name}={{path: {checkpoint(name)}, weight: 0.1}}" for name in ("clip", "pickscore")]
    more += [*scorers, "rewards.pickscore.tokenizer=null"]
    run = TinyRun(files, "generators", "sd3", "algorithm=draft", *more, name="followed")
    run.train("steps=2")
    for step in run.metrics[1:]:
        assert step["actor/grad_norm"] > 0
        assert step["actor/reward"] == pytest.approx(step["critic/rewards/mean"], rel=0.05, abs=0.05)
