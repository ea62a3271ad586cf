"""Models, prompts and pictures of the three quickstarts as they ship, and the scripts that made them."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from burnish.registry import lookup
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt
from burnish.utils.paths import ASSETS
from tests.support.shown import ROOT

pytest.importorskip("sklearn")
sys.path.insert(0, str(ROOT / "tools"))

import pretrain_tiny
import tiny_training
import tiny_video
import tiny_video_data
import tiny_vlm
import tiny_vlm_data

pytestmark = pytest.mark.usefixtures("settings_of_torch")
DRAWS, SEES, MOVES = (ASSETS / name for name in ("quickstart", "vlm_quickstart", "video_quickstart"))
SEED = tiny_training.SEED
SIGNS = re.compile(r"<think>(\d+)(?:[+,](\d+))?</think>")


def records_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_shipped_model_reads_digits_and_often_forgets_the_form():
    asked = tiny_vlm.read_questions(SEES / "heldout.jsonl")[:96]
    answered = zip(tiny_vlm.sample(SEES, asked, seed=0), asked, strict=True)
    pairs = [(text, question) for texts, question in answered for text in texts]
    assert 0.4 < np.mean([tiny_vlm.right(text, question) for text, question in pairs]) < 0.6
    assert 0.5 < np.mean([tiny_vlm.ANSWER.fullmatch(text) is not None for text, _ in pairs]) < 0.7


def test_questions_about_scans_are_right_and_those_of_the_script(tmp_path):
    tiny_vlm_data.write_data(tmp_path, SEED)
    tiny_vlm_data.write_turned(tmp_path, SEED)
    for name in ("train", "heldout", "supervised", "turned_heldout"):
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (SEES / f"{name}.jsonl").read_bytes()
    pictures, digits = tiny_vlm_data.scans()
    for name, count in (("train", 768), ("heldout", 192)):
        records = records_of(SEES / f"{name}.jsonl")
        assert len({json.dumps(record) for record in records}) == count
        assert {record["data_source"] for record in records} == set(tiny_vlm_data.QUESTIONS)
        for record in records:
            seen = [int(digits[int(Path(image).stem)]) for image in record["images"]]
            right = {"digit": seen[0], "sum": sum(seen), "larger": max(seen)}[record["data_source"]]
            assert record["answer"] == str(right)
            assert record["prompt"] == "<image>" * len(seen) + tiny_vlm_data.QUESTIONS[record["data_source"]]
            assert record["data_source"] != "larger" or len(set(seen)) == 2
    files = sorted((SEES / "images").iterdir())
    assert len(files) > 500
    for path in files[::25]:
        np.testing.assert_array_equal(np.asarray(Image.open(path)), pictures[int(path.stem)])


def test_no_scan_is_in_two_parts():
    parts = tiny_vlm_data.split(SEED)
    drawn = [set(part) for part in dataclasses.astuple(parts)]
    assert sum(map(len, drawn)) == len(set.union(*drawn)) == 1797
    pictures, digits = tiny_vlm_data.scans()
    seen = {pictures[number].tobytes() for number in {*parts.warmup, *parts.train}}
    assert not [number for number in parts.heldout if pictures[number].tobytes() in seen]
    for name, allowed in (
        ("train", parts.train), ("preferences", parts.train), ("unpaired", parts.train),
        ("supervised", parts.warmup), ("heldout", parts.heldout),
    ):  # fmt: skip
        images = {int(Path(image).stem) for record in records_of(SEES / f"{name}.jsonl") for image in record["images"]}
        assert images <= set(allowed), name
    for name, chosen in (("turned", [*parts.train, *parts.warmup] * tiny_vlm_data.TURNED),
                         ("turned_heldout", parts.heldout)):  # fmt: skip
        records = records_of(SEES / f"{name}.jsonl")
        assert sorted(record["answer"] for record in records) == sorted(str(digits[scan]) for scan in chosen)
        assert len({json.dumps(record) for record in records}) == len(records)
        assert Image.open(BytesIO(b64decode(records[0]["images"][0]))).size == (28, 28)


def judged(records: list[dict], responses: list[str]) -> np.ndarray:
    """Whether each response is in its form, and whether it is right: [2, responses]."""
    prompts = [Prompt(text=record["prompt"], answer=record["answer"]) for record in records]
    rewards = [lookup("language reward", name)() for name in ("format", "exact")]
    texts = [Response(text) for text in responses]
    return np.array([[verdict.value for verdict in reward.score(texts, prompts)] for reward in rewards])


def test_shipped_replies_are_judged_as_they_are_meant():
    supervised = records_of(SEES / "supervised.jsonl")
    form, right = judged(supervised, [record["response"] for record in supervised])
    assert len(supervised) == 192
    np.testing.assert_array_equal(form, right)
    assert 0.4 < form.mean() < 0.8
    for record in supervised:
        assert record["answer"] in re.findall(r"\d+", re.sub("<think>.*</think>", "", record["response"]))
    assert sum(SIGNS.search(record["response"]) is not None for record in supervised) > 40
    pairs, single = (records_of(SEES / f"{name}.jsonl") for name in ("preferences", "unpaired"))
    assert len(single) == 2 * len(pairs) > 300
    assert judged(pairs, [pair["chosen"] for pair in pairs])[1].all()
    assert not judged(pairs, [pair["rejected"] for pair in pairs]).all(axis=0).any()
    form, exact = judged(single, [record["completion"] for record in single])
    np.testing.assert_array_equal(form * exact, [float(record["label"]) for record in single])


TINY: list[tuple[ModuleType, list[str], str, dict]] = [
    (pretrain_tiny, ["--steps", "2"], "model/transformer/diffusion_pytorch_model.safetensors", {}),
    (
        tiny_video, ["--vae-steps", "2", "--steps", "2", "--last-steps", "2"],
        "model/vae/diffusion_pytorch_model.safetensors",
        dict.fromkeys(("STYLES", "FEW_STYLES"), tiny_video_data.STYLES[:1]),
    ),
    (tiny_vlm, ["--steps", "2"], "model/model.safetensors", {"PREFERENCES": 4}),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("script", "options", "weights", "smaller"), TINY)
def test_two_trainings_give_the_same_bytes(script, options, weights, smaller, tmp_path, monkeypatch):
    for name, value in smaller.items():
        monkeypatch.setattr(script, name, value)
    for name in ("one", "two"):
        script.main([*options, "--output", str(tmp_path / name)])
    one, two = tmp_path / "one", tmp_path / "two"
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert Path(weights) in files
    assert [file for file in files if (one / file).read_bytes() != (two / file).read_bytes()] == []
