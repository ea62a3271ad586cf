"""Runs on data of one's own: lists in shares, code, a curriculum, passes over it, and images that begin."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import burnish as package
from burnish.types.media import Media
from burnish.types.samples import Clip
from tests.support.optional import seldom
from tests.support.runs import last_state
from tests.support.tiny_run import TinyRun, burnish

CODE = """
def sums():
    for i in range(5):
        yield {"prompt": f"{i} + 1?", "answer": i + 1}


def worst_first(records, history, update, count, seed):
    drawn = sorted(range(len(records)), key=lambda row: (history[row][-1] if history[row] else -1.0, row))
    with open(__file__ + ".log", "a") as log:
        print(update, drawn[:count], sum(map(len, history)), file=log)
    return drawn[:count]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Data by code and in a file."""
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "letters.jsonl").write_text("".join(json.dumps({"prompt": letter}) + "\n" for letter in "abc"))
    return tmp_path


def on_lists(files: Path, place: Path, name: str, *more: str) -> TinyRun:
    run = TinyRun(
        files, "language", "llama", "algorithm=grpo", "checkpoint.every=1", "validation.every=1",
        "validation.max_prompts=1",
        f"data.train_files=['{place / 'mine.py'}:sums', {place / 'letters.jsonl'}]",
        f"data.val_files={place / 'letters.jsonl'}", *more, name=f"lists/{name}",
    )  # fmt: skip
    tree = json.loads(run.recipe.read_text())
    del tree["steps"]
    run.recipe.write_text(json.dumps(tree))
    return run


@pytest.mark.thorough
def test_a_run_of_epochs_has_as_many_updates_and_can_be_made_longer(files, place):
    run = on_lists(files, place, "epochs")
    run.train("data.epochs=0.5", "data.mix=[3, 1]")
    assert len(run.metrics) == 3, "a validation before, and half of 8 records by twos"
    assert "steps: 2" in (run.output / "config.yaml").read_text()
    run.train("data.epochs=1", "data.mix=[3, 1]")
    assert len(run.metrics) == 5
    straight = on_lists(files, place, "straight")
    straight.train("steps=4", "data.mix=[3, 1]")
    assert last_state(straight.output) == last_state(run.output)
    said = run.train("data.epochs=2", "data.mix=[1, 1]", status=2).message
    assert "data.mix: [3.0, 1.0] -> [1.0, 1.0]" in said


def test_a_curriculum_resumes_where_it_was(files, place):
    sampler, log = f"data.sampler={place / 'mine.py'}:worst_first", place / "mine.py.log"
    whole = on_lists(files, place, "whole", sampler)
    whole.train("steps=4")
    chosen = [line for line in log.read_text().splitlines() if not line.startswith("0 ")]
    log.unlink()
    parts = on_lists(files, place, "parts", sampler)
    for steps in (2, 3, 4):
        parts.train(f"steps={steps}")
    assert set(log.read_text().splitlines()) == set(chosen)
    assert parts.metrics == whole.metrics
    assert last_state(parts.output) == last_state(whole.output)


def test_the_command_line_decides_between_steps_and_epochs(files, place):
    recipe = str(on_lists(files, place, "recipe").recipe)
    given = ["algorithm=grpo", f"data.train_files=['{place / 'mine.py'}:sums', {place / 'letters.jsonl'}]"]
    upper, above = place / "upper.yaml", place / "above.yaml"
    upper.write_text(json.dumps({"extends": recipe, "algorithm": "grpo", "data": {"epochs": 3}}))
    above.write_text(json.dumps({"extends": str(upper), "steps": 5}))
    assert package.load(str(upper)).data.epochs == 3
    assert package.load(str(upper), "steps=7").data.epochs is None
    assert (package.load(str(above)).steps, package.load(str(above)).data.epochs) == (5, None)
    for more, said in (
        (["steps=7", "data.epochs=2"], "steps and data.epochs are both given"),
        (["data.mix=[1,2,3]"], "data.mix has 3 weights"),
        (["data.mix=[1,2]", "data.sampler=a:b"], "data.mix and data.sampler"),
    ):
        assert said in burnish("train", recipe, *given, *more, f"output_dir={place / 'run'}", status=2).message


def nearness(samples: list[Any], prompts: list[Any]) -> list[float]:
    """How near the mean colour of a sample, or of a clip's last frame, is to that of its prompt's image."""
    found = []
    for sample, prompt in zip(samples, prompts, strict=True):
        pixels = sample.frames[-1] if isinstance(sample, Clip) else sample
        begun = np.asarray(prompt.images[0].image())
        found.append(1 - float(np.abs(pixels.mean((0, 1)) - begun.mean((0, 1))).mean()) / 255)
    return found


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Two prompts with images of their own."""
    for name, shade in (("dark", 20), ("light", 230)):
        Image.fromarray(np.full((32, 32, 3), shade, np.uint8)).save(tmp_path / f"{name}.png")
    lines = [json.dumps({"prompt": "make it red", "image": f"{name}.png"}) for name in ("dark", "light")]
    (tmp_path / "records.jsonl").write_text("\n".join(lines))
    return tmp_path / "records.jsonl"


BEGUN = [
    "algorithm=diffusion_nft", "algorithm.train_timesteps=2", "rewards.brightness=null", "steps=1",
    "rewards.near={name: function, path: 'tests.system.test_data:nearness'}", "rollout.num_inference_steps=2",
    "rollout.height=32", "rollout.width=32", "rollout.max_sequence_length=16", "rollout.n=2", "validation.every=1",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        ("flux-kontext", "png", ["rollout.call={_auto_resize: false}"]),
        *seldom(("wan2.1-i2v", "mp4", ["rollout.num_frames=5"])),
    ],
    ids=["editing", "video"],
)
def test_samples_begin_from_the_images_of_their_prompts(files, records, name, kind, more):
    run = TinyRun(files, "generators", name, *BEGUN, f"data.train_files={records}", *more, name=f"begun/{kind}")
    run.train()
    for folder in (run.output / "validation" / update for update in ("000000", "000001")):
        samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
        assert [Path(sample["file"]).suffix for sample in samples] == [f".{kind}"] * 2
        for number, (sample, begun) in enumerate(zip(samples, (20, 230), strict=True)):
            shown = folder / "pictures" / f"{number:03d}-input-0.png"
            assert (np.asarray(Image.open(shown)) == begun).all()
            media = Media.file(folder / "pictures" / sample["file"], "image" if kind == "png" else "video")
            last = np.asarray(media.image()) if kind == "png" else media.video()[0][-1]
            expected = 1 - np.abs(last.mean((0, 1)) - begun).mean() / 255
            assert sample["reward"] == pytest.approx(expected, abs=1e-6 if kind == "png" else 0.02)
    assert "is what the samples begin from" in (run.output / "report.html").read_text()
