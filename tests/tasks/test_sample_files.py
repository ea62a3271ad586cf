"""Samples of training as files: complete, bounded, and in a form that the datasets library loads."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from burnish.data.flow.pictures import read_pictures
from burnish.options.flow import PromptOptions
from burnish.options.samples import SaveOptions
from burnish.tasks.sample_files import SampleFiles, write_index
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores

NAN = float("nan")
DRAWN = {"seed": 7, "purpose": "rollout", "update": 1}


def picture(seed):
    return np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)


def scores(rewards, missing=()):
    count = len(rewards)
    return Scores(
        reward=torch.tensor(rewards), missing=torch.tensor([i in missing for i in range(count)]),
        components=torch.tensor([[value, NAN if i in missing else 1.0] for i, value in enumerate(rewards)]),
        names=("ocr", "ocr_exact"), weights=(1.0, 0.0), notes=[f"read {i}" for i in range(count)],
        faults=["ocr: failed" if i in missing else "" for i in range(count)],
    )  # fmt: skip


def keep(files, prompts, *, update=1, missing=(), rewards=None):
    rows = [prompt for prompt in prompts for _ in range(2)]
    numbers = torch.arange(len(rows))

    def write(folder, row):
        Image.fromarray(picture(row)).save(folder / f"{row % 2:03d}.png")
        return {"file_name": f"{row % 2:03d}.png"}

    found = scores(rewards or [row / 10 for row in range(len(rows))], missing)
    files.keep(update, rows, numbers // 2, numbers % 2, found, write, version=update - 1, drawn=DRAWN)


def records(folder):
    return [
        json.loads(line)
        for file in sorted(folder.glob("*/records.jsonl"))
        for line in file.read_text().splitlines()
    ]  # fmt: skip


FULL = Prompt(
    text="a red cube", negative="blur", answer="cube", source="shapes", label="easy", extra='{"size": [1, 2]}',
    images=(Media.array(picture(9)),), inputs=(("mask_image", Media.array(picture(8))),), where="a.jsonl:3",
)  # fmt: skip


def test_every_field_is_kept(tmp_path):
    keep(SampleFiles(tmp_path, SaveOptions()), [FULL], missing=(1,))
    first, second = records(tmp_path)
    expected = {
        "update": 1, "version": 0, "group": 0, "prompt": "a red cube", "negative_prompt": "blur", "answer": "cube",
        "data_source": "shapes", "label": "easy", "where": "a.jsonl:3", "uid": FULL.uid, "sample": 0, "reward": 0.0,
        "components": {"ocr": 0.0, "ocr_exact": 1.0}, "note": "read 0", "fault": "", "images": ["image-0.png"],
        "seed": 7, "purpose": "rollout", "drawn_for": 1,
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert json.loads(first["record"]) == {"size": [1, 2]}
    folder = tmp_path / first["folder"]
    assert (np.asarray(Image.open(folder / first["file_name"])) == picture(0)).all()
    assert (np.asarray(Image.open(folder / "image-0.png")) == picture(9)).all()
    assert json.loads(first["inputs"]) == {"mask_image": "input-mask_image.png"}
    assert second["reward"] is None
    assert second["components"]["ocr_exact"] is None
    assert second["fault"] == "ocr: failed"


def test_another_run_learns_from_them(tmp_path):
    """data.train_files=RUN/samples"""
    keep(SampleFiles(tmp_path, SaveOptions()), [Prompt(text="plain"), FULL], missing=(0,))
    write_index(tmp_path)
    for holds, rewards in (("pictures", [NAN] * 4), ("scored", [NAN, 0.1, 0.2, 0.3])):
        found = read_pictures(str(tmp_path), holds, size=(6, 8), keys=PromptOptions())
        found.sort(key=lambda one: one.prompt.text, reverse=True)  # folders are in the order of uids
        assert [one.prompt.text for one in found] == ["plain"] * 2 + ["a red cube"] * 2
        assert [one.reward for one in found] == pytest.approx(rewards, nan_ok=True)
        for row, one in enumerate(found):
            assert (np.asarray(one.pictures[0].image()) == picture(row)).all()


def test_which_updates_and_prompts(tmp_path):
    files = SampleFiles(tmp_path, SaveOptions(every=3, prompts=2))
    prompts = [Prompt(text=f"prompt {i}") for i in range(4)]
    for update in range(1, 9):
        keep(files, prompts, update=update)
    found = {(record["update"], record["prompt"]) for record in records(tmp_path)}
    assert found == {(update, f"prompt {i}") for update in (1, 4, 7) for i in (0, 1)}


def test_an_update_that_is_repeated_replaces_what_it_wrote(tmp_path):
    files = SampleFiles(tmp_path, SaveOptions())
    keep(files, [FULL], rewards=[0.1, 0.2])
    (tmp_path / f".{records(tmp_path)[0]['folder']}.new").mkdir()  # of a crash
    keep(SampleFiles(tmp_path, SaveOptions()), [FULL], rewards=[0.3, 0.4])
    assert [round(record["reward"], 3) for record in records(tmp_path)] == [0.3, 0.4]
    assert not list(tmp_path.glob(".*"))


def test_the_folder_is_bounded(tmp_path, caplog):
    files = SampleFiles(tmp_path, SaveOptions(every=1, most_mb=0.004))
    for update in range(1, 20):
        keep(files, [Prompt(text="x")], update=update)
    size = sum(file.stat().st_size for file in tmp_path.rglob("*"))
    assert 4000 <= size <= 40_000
    assert len(records(tmp_path)) < 20
    assert caplog.text.count("rollout.save.most_mb=0.004") == 1


@pytest.mark.parametrize("loader", ["imagefolder", "json"])
def test_datasets_loads_them(tmp_path, loader):
    datasets = pytest.importorskip("datasets")
    samples = tmp_path / "samples"
    files = SampleFiles(samples, SaveOptions())
    # columns that are empty in one file and full in another
    keep(files, [Prompt(text="plain"), FULL, replace(FULL, text="another", label=None)], missing=(0, 1))
    write_index(samples)
    given = {"data_dir": str(samples)} if loader == "imagefolder" else {"data_files": str(samples / "metadata.jsonl")}
    table = datasets.load_dataset(loader, split="train", cache_dir=str(tmp_path / "cache"), **given)
    assert len(table) == 6
    assert sorted(table["prompt"]) == ["a red cube"] * 2 + ["another"] * 2 + ["plain"] * 2
    rows = {(row["prompt"], row["sample"]): row for row in table}
    assert rows["plain", 0]["reward"] is None
    assert rows["a red cube", 1]["reward"] == pytest.approx(0.3)
    assert rows["a red cube", 0]["images"] == [f"{rows['a red cube', 0]['folder']}/image-0.png"]
    if loader == "imagefolder":
        assert (np.asarray(rows["a red cube", 1]["image"]) == picture(3)).all()
