"""A run that is recorded has the numbers of one that is not."""

from __future__ import annotations

import gzip
import json

import pytest

from burnish.commands.train import train
from burnish.config import load
from burnish.utils.errors import ConfigError
from tests.support.factory import tiny_pipeline
from tests.support.runs import last_state, metrics_of


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    tree = {
        "model": {"path": str(tiny_pipeline(folder, vae=False)), "device": "cpu", "lora": {"rank": 2}},
        "data": {"train_files": str(folder / "prompts.txt"), "train_batch_size": 2},
        "algorithm": {"name": "flow_grpo"},
        "rewards": {"jpeg_compressibility": {}},
        "rollout": {"n": 2, "num_inference_steps": 4, "max_sequence_length": 3},
        "scoring": {"processes": 0},
        "validation": {"every": 0, "n": 1, "max_prompts": 1},
        "steps": 3,
    }
    (folder / "recipe.yaml").write_text(json.dumps(tree))
    return folder


def test_recording_changes_nothing(recipe, tmp_path, capsys):
    for name, more in {"plain": [], "recorded": ["profiler.steps=[2]", "profiler.record_shapes=true"]}.items():
        assert train(load(str(recipe / "recipe.yaml"), [*more, f"output_dir={tmp_path / name}"])) == 0
    assert metrics_of(tmp_path / "recorded") == metrics_of(tmp_path / "plain")
    assert last_state(tmp_path / "recorded") == last_state(tmp_path / "plain")
    assert not (tmp_path / "plain" / "profiles").exists()
    (trace,) = [path for path in (tmp_path / "recorded" / "profiles").rglob("*") if path.is_file()]
    assert trace.relative_to(tmp_path).as_posix() == "recorded/profiles/update-00000002/local-0.json.gz"
    with gzip.open(trace, "rt") as opened:
        names = {event["name"] for event in json.load(opened)["traceEvents"]}
    timed = json.loads((tmp_path / "recorded" / "metrics.jsonl").read_text().splitlines()[2])
    phases = {name.removeprefix("timing_s/") for name in timed if name.startswith("timing_s/")}
    assert {"step", "gen", "reward", "old_log_prob", "adv", "update_actor", "publish"} <= names & phases
    assert str(trace.parents[1]) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["profiler.steps=[9]"], "profiler.steps has 9, but the run has only 3 updates"),
        (["profiler={steps: [1], tool: memory}"], "needs a GPU, but model.device is cpu"),
        (["profiler={steps: [1], roles: [reward]}"], "profiler.roles is given, but runtime is local"),
        (["profiler.steps=[1]", "profiler.ranks=[0]"], "profiler.ranks is given, but runtime is local"),
        (["profiler.steps=[1]", "profiler.with_stakc=true"], "with_stack"),
        (["profiler.with_stack=true"], "profiler.steps"),
    ],
)
def test_what_can_not_be_recorded_is_refused(recipe, given, words):
    with pytest.raises(ConfigError, match=words):
        load(str(recipe / "recipe.yaml"), given)


def test_a_run_goes_on_when_it_is_recorded_from_now_on(recipe, tmp_path):
    command = [f"output_dir={tmp_path / 'run'}", "validation.every=0"]
    assert train(load(str(recipe / "recipe.yaml"), command)) == 0
    assert train(load(str(recipe / "recipe.yaml"), [*command, "steps=4", "profiler.steps=[4]"])) == 0
    assert (tmp_path / "run" / "profiles" / "update-00000004" / "local-0.json.gz").exists()
