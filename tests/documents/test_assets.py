"""Models, prompts and images of the three quickstarts as they ship, and the scripts that made them."""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from burnish.utils.paths import ASSETS
from tests.support.shown import ROOT

pytest.importorskip("sklearn")
sys.path.insert(0, str(ROOT / "tools"))

import pretrain_tiny
import tiny_training
import tiny_unified
import tiny_video
import tiny_video_data
import tiny_vlm
import tiny_vlm_data

pytestmark = pytest.mark.usefixtures("settings_of_torch")
DRAWS, SEES, MOVES = (ASSETS / name for name in ("quickstart", "vlm_quickstart", "video_quickstart"))
SEED = tiny_training.SEED


def records_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.thorough
def test_questions_about_scans_are_right_and_those_of_the_script(tmp_path):
    tiny_vlm_data.write_data(tmp_path, SEED)
    tiny_vlm_data.write_turned(tmp_path, SEED)
    for name in ("train", "heldout", "supervised", "turned_heldout"):
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (SEES / f"{name}.jsonl").read_bytes()
    images, digits = tiny_vlm_data.scans()
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
        np.testing.assert_array_equal(np.asarray(Image.open(path)), images[int(path.stem)])


TINY: list[tuple[ModuleType, list[str], str, dict]] = [
    (pretrain_tiny, ["--steps", "2"], "model/transformer/diffusion_pytorch_model.safetensors", {}),
    (tiny_unified, ["--steps", "2"], "model/pe/model.safetensors", {}),
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
