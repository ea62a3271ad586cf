"""Evaluations: what is drawn for whom, by which settings, what is written of it, and what may be stopped or divided."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image

from burnish.tasks.flow.engine import FlowEngine
from tests.support.tiny_run import TinyRun, burnish

HALVES = ("generators", "language")
FUNCTIONS = """
import os, pathlib, signal
import numpy as np


def stopping(samples, prompts):
    if not pathlib.Path(__file__).with_name("stopped").exists():
        pathlib.Path(__file__).with_name("stopped").touch()
        os.kill(os.getpid(), signal.SIGINT)
    return [0.5 for _ in samples]


def blind(samples, prompts):
    return [float(len(getattr(one, "text", "")) or np.asarray(one).mean()) for one in samples]
"""


def recipe(files, half, model, *options):
    """Of an untrained model, with its options."""
    run = TinyRun(files, half, model, *options)
    tree = json.loads(run.recipe.read_text())
    for option in run.options:
        name, _, value = option.partition("=")
        place = tree
        for part in name.split(".")[:-1]:
            place = place.setdefault(part, {})
        place[name.rpartition(".")[2]] = yaml.safe_load(value)
    run.recipe.write_text(json.dumps(tree))
    return run.recipe


@pytest.fixture
def model(files):
    made = {"generators": ("sd3", "algorithm=flow_grpo"), "language": ("llama", "algorithm=grpo")}

    def evaluate(half, target, *words, status=0):
        source = recipe(files, half, *made[half], "rollout.batch_size=2")
        return burnish("eval", source, *words, "--output", target, status=status)

    return evaluate


def suite(folder, half, **changes):
    """A suite of six prompts; its scorer knows no right answer."""
    (folder / "functions.py").write_text(FUNCTIONS)
    words = ["one", "two", "three", "four", "five", "six"]
    records = [{"prompt": f"No. {word}?", "answer": word, "data_source": word[0]} for word in words]
    (folder / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    tree = {
        "about": "x", "licence": "x", "task": "text-to-image", "prompts": "asked.jsonl", "n": 2,
        "drawing": {"num_inference_steps": 3, "height": 16, "width": 16},
        "scorers": {"blind": {"name": "function", "path": f"{folder}/functions.py:blind"}}, "number": "blind",
    }  # fmt: skip
    if half == "language":
        tree["task"] = "image-text-to-text"
        tree["responding"] = {"temperature": 1.0, "max_new_tokens": 4}
        tree["canaries"] = [{"kind": "answers", "form": "<answer>{}</answer>"}]
        del tree["drawing"]
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(tree | changes))
    return path


def contents(folder):
    """What an evaluation of a suite wrote."""
    kept = [folder / name for name in ("suite.json", "samples.jsonl", "result.json")]
    return {file.name: file.read_bytes() for file in (*kept, *sorted((folder / "media").glob("*")))}


@pytest.mark.parametrize("half", HALVES)
def test_killed_and_divided_evaluations_equal_the_whole(half, model, tmp_path):
    path = suite(tmp_path, half)
    model(half, tmp_path / "whole", "--suite", path)
    whole = contents(tmp_path / "whole")
    assert len(whole) == (3 if half == "language" else 3 + 12)
    assert json.loads(whole["result.json"])["prompts"] == 6
    # killed in the middle of writing what the second batch gave
    target = tmp_path / "killed"
    shutil.copytree(tmp_path / "whole", target)
    (target / "result.json").unlink()
    (target / "samples.jsonl").write_bytes(whole["samples.jsonl"][: len(whole["samples.jsonl"]) // 2])
    model(half, target, "--suite", path)
    assert contents(target) == whole
    # in two halves, the second one first
    for number in (2, 1):
        model(half, tmp_path / str(number), "--suite", path, "--shard", f"{number}/2")
    burnish("eval", "--merge", tmp_path / "1", tmp_path / "2", "--output", tmp_path / "both")
    assert contents(tmp_path / "both") == whole


def test_a_stop_request_ends_an_evaluation_that_goes_on_later(model, tmp_path):
    path = suite(tmp_path, "language")
    scorer = {"name": "function", "path": f"{tmp_path}/functions.py:stopping"}
    path = suite(tmp_path, "language", scorers={"blind": scorer}, canaries=[])
    model("language", tmp_path / "half", "--suite", path, status=130)
    assert len((tmp_path / "half" / "samples.jsonl").read_text().splitlines()) < 12
    model("language", tmp_path / "half", "--suite", path)
    assert json.loads((tmp_path / "half" / "result.json").read_text())["prompts"] == 6


def test_a_stop_request_ends_the_suites_of_a_validation(files, tmp_path):
    scorer = {"name": "function", "path": f"{tmp_path}/functions.py:stopping"}
    path = suite(tmp_path, "language", scorers={"blind": scorer}, canaries=[])
    run = TinyRun(files, "language", "llama", "algorithm=grpo", "steps=1", f"validation.suites=[{path}]")
    run.train(status=75)
    run.train()
    assert run.metrics[-1]["suite/mine/overall"] == 0.5


def test_an_adapter_of_another_model_is_refused(files, tmp_path):
    run = TinyRun(files, "language", "llama", "algorithm=grpo", "steps=1", "validation.every=null")
    run.train()
    burnish("export", run.output, "--output", tmp_path / "adapter", "--format", "lora")
    burnish("tiny", "mamba2", tmp_path / "mamba2")
    source = f"{tmp_path / 'mamba2'}+{tmp_path / 'adapter'}"
    path = suite(tmp_path, "language")
    said = burnish("eval", source, "--suite", path, "--output", tmp_path / "out", status=2)
    assert str(tmp_path / "adapter") in said.message


def test_noise_is_that_of_prompt_and_sample_alone(model, tmp_path):
    model("generators", tmp_path / "first", "--suite", suite(tmp_path, "generators"))
    asked = [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text().splitlines()]
    # other prompts beside, another order, more samples, another seed of the run: the same pictures
    path = suite(tmp_path, "generators", n=3)
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked[3::-2]))
    model("generators", tmp_path / "second", "--suite", path, "seed=7")
    model("generators", tmp_path / "third", "--suite", suite(tmp_path, "generators", version=2))

    def drawn(name):
        folder = tmp_path / name
        rows = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
        return {(row["prompt"], row["sample"]): (folder / "media" / row["file"]).read_bytes() for row in rows}

    first, second, third = map(drawn, ("first", "second", "third"))
    assert len(second) == 6
    assert {key: first.get(key) for key in second if key[1] < 2} == {key: second[key] for key in second if key[1] < 2}
    assert len(set(first.values())) == 12
    assert first["No. one?", 0] != third["No. one?", 0]


def test_a_scorer_that_ignores_metadata_is_caught(model, tmp_path):
    path = suite(tmp_path, "language")
    model("language", tmp_path / "blind", "--suite", path)
    sound = suite(tmp_path, "language", scorers={"exact": {}}, number="exact")
    model("language", tmp_path / "sound", "--suite", sound)
    blind, sound = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("blind", "sound"))
    assert (blind["believed"], sound["believed"]) == (False, True)
    assert "blind" in blind["why_not"][0]


def test_validations_run_suites_on_a_subset(files, tmp_path):
    path = suite(tmp_path, "language", scorers={"exact": {}}, number="exact")
    options = ["algorithm=grpo", "steps=1", f"validation.suites=[{path}]", "validation.suite_prompts=5"]
    run = TinyRun(files, "language", "llama", *options)
    run.train()
    for number, row in enumerate(run.metrics):
        result = run.output / "validation" / f"{number:06d}" / "suites" / "mine" / "result.json"
        told = json.loads(result.read_text())
        assert (told["prompts"], told["changed"], row["suite/mine/believed"]) == (5, ["max_prompts"], 1)
        assert 0 <= row["suite/mine/overall"] <= 1
    answers = [line["values"] for line in map(json.loads, result.with_name("samples.jsonl").read_text().splitlines())]
    assert len(answers) == 10


REFUSED = [
    ("language", {"task": "text-to-image"}, "text-to-image"),
    ("language", {"scorers": {"choice": {}}, "number": "choice"}, "choice"),
    ("generators", {"scorers": {"ocr": {}}, "number": "ocr", "prompts": "plain.txt"}, "ocr"),
]


@pytest.mark.parametrize(("half", "changes", "name"), REFUSED)
def test_suites_that_do_not_fit_are_refused_before_weights_are_loaded(half, changes, name, model, tmp_path):
    (tmp_path / "plain.txt").write_text("a red cube\n")
    path = suite(tmp_path, half, **changes)
    said = model(half, tmp_path / "out", "--suite", path, status=2)
    assert name in said.message
    assert "Loading the model" not in said.err


def pictures(folder):
    return [np.asarray(Image.open(file)) for file in sorted((folder / "pictures").glob("*.png"))]


def test_validations_draw_with_steps_guidance_solver_and_size_of_their_own(model, tmp_path):
    own = ["num_inference_steps=3", "guidance_scale=2", "solver=heun"]
    model("generators", tmp_path / "plain", "validation.n=2", "validation.height=24")
    model("generators", tmp_path / "own", "validation.n=2", *(f"validation.{option}" for option in own))
    model("generators", tmp_path / "given", "validation.n=2", *(f"rollout.{option}" for option in own))
    plain, mine, given = (pictures(tmp_path / name) for name in ("plain", "own", "given"))
    assert len(mine) == 4
    assert all(map(np.array_equal, mine, given))
    assert {one.shape for one in plain} == {(24, 16, 3)}
    assert len({one.tobytes() for one in plain}) == 4


def test_a_size_that_can_not_be_drawn_is_refused_and_another_one_is_told(files, monkeypatch, caplog):
    run = TinyRun(files, "generators", "sd3", "algorithm=flow_grpo", "validation.height=17")
    assert "validation.height is 17" in run.train(status=2).message
    run = TinyRun(files, "generators", "sd3", "algorithm=flow_grpo", "validation.height=24", "steps=1")
    sample = FlowEngine.sample
    monkeypatch.setattr(
        FlowEngine, "sample", lambda own, job: (
            (rows, path, [picture.repeat(2, 0) for picture in pictures]) for rows, path, pictures in sample(own, job)
        ),
    )  # fmt: skip
    run.train()
    assert "rollout.height is 16 and width 16, but the pipeline draws 32 x 16" in caplog.text
    assert "validation.height is 24 and width 16, but the pipeline draws 48 x 16" in caplog.text


def test_a_model_of_noise_draws_with_the_levels_of_its_own_scheduler(files, tmp_path):
    options = [
        "algorithm=diffusion_nft", "rollout.solver=heun", "validation.num_inference_steps=3",
        "validation.guidance_scale=2", "validation.solver=dpm2m", "validation.width=32",
    ]  # fmt: skip
    burnish("eval", recipe(files, "generators", "sdxl", *options), "--output", tmp_path)
    assert {one.shape for one in pictures(tmp_path)} == {(16, 32, 3)}


MOVING = [
    ("wan2.2", ["rollout.num_frames=5", "rewards.brightness.frames={every: 2}"], "mp4"),
    ("longcat-audio", ["rollout.height=null", "rollout.width=null", "rollout.call={audio_duration_s: 0.1}"], "wav"),
]


@pytest.mark.parametrize(("name", "options", "kind"), MOVING)
def test_clips_and_sounds_are_scored_written_and_shown(name, options, kind, files, tmp_path):
    source = recipe(files, "generators", name, "algorithm=flow_grpo", *options)
    burnish("eval", source, "validation.n=2", "--output", tmp_path)
    written = {file.name for file in (tmp_path / "pictures").iterdir()}
    assert written == {f"00{row}-0{n}.{kind}" for row in (0, 1) for n in (0, 1)}
    assert (tmp_path / "grid.png").stat().st_size
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert len({row["reward"] for row in rows}) > 1
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["val-core/default/reward/mean@2"] == pytest.approx(np.mean([row["reward"] for row in rows]))
    assert metrics["val-aux/variety"] > 0


def test_pictures_that_a_prompt_begins_from_are_kept_beside_what_is_drawn(files, tmp_path):
    options = ["algorithm=diffusion_nft", "rollout.height=null", "rollout.width=null"]
    options += ["data.train_files={files}/edits.jsonl"]
    burnish("eval", recipe(files, "generators", "instruct-pix2pix", *options), "--output", tmp_path)
    names = {file.name for file in (tmp_path / "pictures").iterdir()}
    assert names == {"000-00.png", "001-00.png", "000-input-0.png", "001-input-0.png"}
    assert os.path.getsize(tmp_path / "grid.png")
