"""Evaluations: what is drawn for whom, by which settings, what is written of it, and what may be stopped or divided."""

import json
import shutil
import wave

import numpy as np
import pytest
import yaml
from PIL import Image

from burnish.utils.images import grid
from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun, burnish

HALVES = ("generators", "language")
NO_SIZE = ["rollout.height=null", "rollout.width=null"]
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


def recipe(run):
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
    made = {"generators": ("flux", "algorithm=flow_grpo"), "language": ("llama", "algorithm=grpo")}

    def evaluate(half, target, *words, status=0):
        run = TinyRun(files, half, *made[half], "rollout.batch_size=2")
        return burnish("eval", recipe(run), *words, "--output", target, status=status)

    return evaluate


def suite(folder, half, **changes):
    (folder / "functions.py").write_text(FUNCTIONS)
    words = ["one", "two", "three", "four", "five", "six"]
    records = [{"prompt": f"No. {word}?", "answer": word, "data_source": word[0]} for word in words]
    (folder / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    tree = {
        "about": "x", "licence": "x", "task": "text-to-image", "prompts": "asked.jsonl", "n": 2,
        "drawing": {"num_inference_steps": 3, "height": 16, "width": 16},
        "scorers": {"blind": {"name": "function", "path": f"{folder}/functions.py:blind"}}, "primary_metric": "blind",
    }  # fmt: skip
    if half == "language":
        tree["task"] = "image-text-to-text"
        tree["responding"] = {"temperature": 1.0, "max_new_tokens": 4}
        tree["sanity_checks"] = [{"kind": "answers", "form": "<answer>{}</answer>"}]
        del tree["drawing"]
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(tree | changes))
    return path


def contents(folder):
    kept = [folder / name for name in ("suite.json", "samples.jsonl", "result.json")]
    return {file.name: file.read_bytes() for file in (*kept, *sorted((folder / "media").glob("*")))}


@pytest.mark.parametrize("half", ["language", *seldom("generators")])
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
        model(half, tmp_path / "both", "--suite", path, "--shard", f"{number}/2")
    halves = [(tmp_path / "both" / f"samples-{number}-of-2.jsonl").read_bytes() for number in (1, 2)]
    (tmp_path / "both" / "samples.jsonl").write_bytes(b"".join(halves))
    both = contents(tmp_path / "both")
    assert sorted(both.pop("samples.jsonl").splitlines()) == sorted(whole.pop("samples.jsonl").splitlines())
    assert both == whole


def test_a_stop_request_ends_an_evaluation_that_goes_on_later(model, tmp_path):
    path = suite(tmp_path, "language")
    scorer = {"name": "function", "path": f"{tmp_path}/functions.py:stopping"}
    path = suite(tmp_path, "language", scorers={"blind": scorer}, sanity_checks=[])
    model("language", tmp_path / "half", "--suite", path, status=130)
    assert len((tmp_path / "half" / "samples.jsonl").read_text().splitlines()) < 12
    model("language", tmp_path / "half", "--suite", path)
    assert json.loads((tmp_path / "half" / "result.json").read_text())["prompts"] == 6


def test_noise_is_that_of_prompt_and_sample_alone(model, tmp_path):
    model("generators", tmp_path / "first", "--suite", suite(tmp_path, "generators"))
    asked = [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text().splitlines()]
    # other prompts beside, another order, more samples, another seed of the run: the same images
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


def test_validations_run_suites_on_a_subset(files, tmp_path):
    path = suite(tmp_path, "language", scorers={"exact": {}}, primary_metric="exact")
    options = ["algorithm=grpo", "steps=1", f"validation.suites=[{path}]", "validation.suite_prompts=5"]
    run = TinyRun(files, "language", "llama", *options)
    run.train()
    for number, row in enumerate(run.metrics):
        result = run.output / "validation" / f"{number:06d}" / "suites" / "mine" / "result.json"
        told = json.loads(result.read_text())
        assert (told["prompts"], told["changed"], row["suite/mine/valid"]) == (5, ["max_prompts"], 1)
        assert 0 <= row["suite/mine/overall"] <= 1
    answers = [line["values"] for line in map(json.loads, result.with_name("samples.jsonl").read_text().splitlines())]
    assert len(answers) == 10


def saved_images(folder):
    return [np.asarray(Image.open(file)) for file in sorted((folder / "pictures").glob("*.png"))]


def test_validations_draw_with_steps_guidance_solver_and_size_of_their_own(model, tmp_path):
    own = ["num_inference_steps=3", "guidance_scale=2", "solver=heun"]
    model("generators", tmp_path / "plain", "validation.n=2", "validation.height=24")
    model("generators", tmp_path / "own", "validation.n=2", *(f"validation.{option}" for option in own))
    model("generators", tmp_path / "given", "validation.n=2", *(f"rollout.{option}" for option in own))
    plain, mine, given = (saved_images(tmp_path / name) for name in ("plain", "own", "given"))
    assert len(mine) == 4
    assert all(map(np.array_equal, mine, given))
    assert {one.shape for one in plain} == {(24, 16, 3)}
    assert len({one.tobytes() for one in plain}) == 4


def apart(images, prompts):
    """How far a sample is from the image that it begins from."""
    begun = [np.asarray(prompt.images[0].image()) for prompt in prompts]
    return [float(image.mean()) - float(one.mean()) for image, one in zip(images, begun, strict=True)]


@pytest.mark.parametrize(("name", "options", "written"), [
    ("wan2.2", ["rollout.num_frames=5", "rewards.brightness.frames={every: 2}"], {"000-00.mp4", "001-00.mp4"}),
    ("longcat-audio", [*NO_SIZE, "rollout.call={audio_duration_s: 0.1}"], {"000-00.wav", "001-00.wav"}),
    ("instruct-pix2pix", [*NO_SIZE, "data.train_files={files}/edits.jsonl"],
     {"000-00.png", "001-00.png", "000-input-0.png", "001-input-0.png"}),
])  # fmt: skip
def test_clips_sounds_and_edited_images_are_scored_written_and_shown(name, options, written, files, tmp_path):
    run = TinyRun(files, "generators", name, "algorithm=flow_grpo", *options)
    if name == "instruct-pix2pix":
        run.options.append("rewards.brightness.path=tests.runs.test_evaluation:apart")
    burnish("eval", recipe(run), "--output", tmp_path)
    assert {file.name for file in (tmp_path / "pictures").iterdir()} == written
    if name == "longcat-audio":
        with wave.open(str(tmp_path / "pictures" / "000-00.wav")) as sound:
            assert sound.getframerate() == json.loads((files / name / "vae" / "config.json").read_text())["sample_rate"]
    sheet = np.asarray(Image.open(tmp_path / "grid.png"))
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len({row["reward"] for row in rows}) == 2
    cells = [np.asarray(Image.open(file)) for file in sorted((tmp_path / "pictures").glob("*.png"))]
    if name == "instruct-pix2pix":
        cells = [cells[i] for i in (1, 0, 3, 2)]  # what a row begins from comes first
        np.testing.assert_array_equal(sheet, np.asarray(grid(cells, columns=2, labels=["a cat", "darker"])))
    for number, row in enumerate(rows) if cells else ():
        begun, shown = cells[2 * number : 2 * number + 2]
        np.testing.assert_array_equal(begun, np.asarray(Image.open(files / f"{number}.png")))
        assert row["reward"] == pytest.approx(shown.mean() - begun.mean())
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["val-core/default/reward/mean@1"] == pytest.approx(np.mean([row["reward"] for row in rows]))
