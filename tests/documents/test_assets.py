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
import torch
from diffusers import StableDiffusion3Pipeline, WanPipeline
from PIL import Image

from burnish.registry import lookup
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt
from burnish.utils.paths import ASSETS
from tests.support.shown import ROOT

pytest.importorskip("sklearn")
sys.path.insert(0, str(ROOT / "tools"))

import pretrain_tiny
import tiny_data
import tiny_measure
import tiny_pipeline
import tiny_training
import tiny_video
import tiny_video_data
import tiny_video_model
import tiny_vlm
import tiny_vlm_data
import tiny_vlm_model

pytestmark = pytest.mark.usefixtures("settings_of_torch")
DRAWS, SEES, MOVES = (ASSETS / name for name in ("quickstart", "vlm_quickstart", "video_quickstart"))
SEED = tiny_training.SEED
SIGNS = re.compile(r"<think>(\d+)(?:[+,](\d+))?</think>")
FRAME = torch.ones(16, 32, dtype=torch.bool)
FRAME[1:-1, 1:-1] = False


def records_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def drawing() -> StableDiffusion3Pipeline:
    pipeline = StableDiffusion3Pipeline.from_pretrained(
        DRAWS / "model", vae=None, text_encoder_3=None, tokenizer_3=None, local_files_only=True
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module")
def moving() -> WanPipeline:
    return tiny_video_model.load(MOVES / "model")


@pytest.mark.parametrize(("folder", "most"), [(DRAWS, 6e6), (SEES, 4e6), (MOVES, 4e6)])
def test_shipped_files_are_small_and_name_no_folder_of_the_machine_that_made_them(folder, most):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < most
    named = [path for path in files if path.suffix == ".json" and "_name_or_path" in path.read_text(encoding="utf-8")]
    assert folder != MOVES or named == []


@pytest.mark.parametrize("options", [
    {"guidance_scale": 3.0, "max_sequence_length": 0},
    {"guidance_scale": 1.0},  # diffusers' default: 256 zero tokens in place of the T5 encoder
])  # fmt: skip
def test_plain_diffusers_draws_dark_digits_on_white_and_guidance_writes_the_number(drawing, options):
    numbers = ["472", "815", "306", "951"]
    pictures = drawing(
        prompt=[*(f"the number {number}" for number in numbers), ""], height=128, width=256, num_inference_steps=8,
        output_type="latent", generator=[torch.Generator().manual_seed(seed) for seed in range(5)], **options,
    ).images  # fmt: skip
    assert pictures.shape == (5, 1, 16, 32)
    assert pictures.dtype == torch.float32
    darkness = (1 - pictures.clamp(-1, 1)) / 2
    assert darkness[..., FRAME].mean() < 0.03
    assert 0.05 < darkness.mean() < 0.4
    assert options["guidance_scale"] == 1 or tiny_measure.measure(pictures[:4, None], numbers)["reward"] > 0.6


@pytest.mark.parametrize("length", [tiny_video_model.MAX_TOKENS, 512])  # the other is diffusers' usual one
def test_plain_diffusers_draws_what_moves_as_the_prompt_says(moving, length):
    scenes = tiny_video_data.split(SEED).train[::10]
    clips = tiny_video.sample(moving, [scene.prompt for scene in scenes], guidance=3.0, seed=0, length=length)
    assert clips.shape == (len(scenes), tiny_video.SAMPLES, 9, 16, 16, 3)
    measured = tiny_measure.measure_clips(clips, scenes)
    assert measured["motion"] > 0.6
    assert measured["ocr"] > 0.4
    assert measured["border"] < 0.05


def test_the_vae_gives_clips_back(moving):
    scenes = tiny_video_data.split(SEED).heldout
    clips = torch.stack([tiny_video_data.render(scene, tiny_video_data.STYLES[0]) for scene in scenes])
    with torch.no_grad():
        latents = tiny_video_model.compress(moving.vae, clips)
        back = moving.vae.decode(latents).sample
        learned = tiny_video_model.expand(moving.vae, latents)  # what training compares
    torch.testing.assert_close(learned.clamp(-1, 1), back, rtol=0, atol=1e-6)
    assert latents.shape == (len(scenes), 4, 5, 8, 8)
    measured = tiny_measure.measure_clips(back.movedim(1, -1)[:, None] / 2 + 0.5, scenes)
    assert measured["exact"] > 0.8
    assert measured["motion"] > 0.95


def test_the_shipped_model_reads_digits_and_often_forgets_the_form():
    asked = tiny_vlm.read_questions(SEES / "heldout.jsonl")[:96]
    answered = zip(tiny_vlm.sample(SEES, asked, seed=0), asked, strict=True)
    pairs = [(text, question) for texts, question in answered for text in texts]
    assert 0.4 < np.mean([tiny_vlm.right(text, question) for text, question in pairs]) < 0.6
    assert 0.5 < np.mean([tiny_vlm.ANSWER.fullmatch(text) is not None for text, _ in pairs]) < 0.7


def test_tokenizers_keep_digits_apart_and_spell_anything(drawing, moving):
    said = drawing.tokenizer.tokenize("the number 472"), moving.tokenizer.tokenize("the number 4 moves left")
    assert said[0] == ["the</w>", "number</w>", "4</w>", "7</w>", "2</w>"]
    assert said[1] == ["▁the", "▁number", "▁", "4", "▁moves", "▁left"]
    built, shipped = tiny_vlm_model.build_tokenizer(), tiny_vlm_model.load(SEES / "model")[1]
    assert built.get_vocab() == shipped.get_vocab()
    assert len(shipped) == tiny_vlm_model.VOCABULARY
    reply = "<think>5+8</think><answer>13</answer>"
    tokens = ["<think>", "5", "+", "8", "</think>", "<answer>", "1", "3", "</answer>"]
    assert shipped.tokenize(reply) == tokens
    assert len(tokens) < tiny_vlm.NEW_TOKENS
    for text in (reply, "Käse 🧀\n", "user:  <image>"):
        assert shipped.decode(shipped(text).input_ids, skip_special_tokens=True) == text


def test_training_reads_prompts_as_pipelines_do(drawing, moving):
    ids = tiny_pipeline.token_ids(drawing, prompts := ["the number 472", ""])
    for blanks in (0, 3):
        tokens, pooled = tiny_pipeline.encode(drawing, ids, blanks=blanks)
        wanted, _, wanted_pooled, _ = drawing.encode_prompt(
            prompts, None, None, do_classifier_free_guidance=False, max_sequence_length=blanks
        )
        torch.testing.assert_close(tokens, wanted, rtol=0, atol=0)
        torch.testing.assert_close(pooled, wanted_pooled, rtol=0, atol=0)
    ids = tiny_video_model.token_ids(moving, prompts := ["the number 4 moves left", ""])
    for length in (tiny_video_model.MAX_TOKENS, 20):
        wanted, _ = moving.encode_prompt(prompts, do_classifier_free_guidance=False, max_sequence_length=length)
        torch.testing.assert_close(tiny_video_model.encode(moving, ids, length=length), wanted, rtol=1e-5, atol=1e-5)


def test_prompts_of_numbers_are_those_of_the_script_and_held_out_ones_are_new():
    train, heldout = (records_of(DRAWS / f"{name}.jsonl") for name in ("train", "heldout"))
    assert all(record["prompt"] == f"the number {record['answer']}" for record in train + heldout)
    numbers = tiny_data.split(SEED)
    assert [record["answer"] for record in train] == list(numbers.train)
    assert [record["answer"] for record in heldout] == list(numbers.heldout)
    assert (len(set(numbers.train)), len(set(numbers.heldout))) == (240, 48)
    assert all(re.fullmatch(r"\d{3}", number) for number in numbers.train + numbers.heldout)
    assert set(numbers.train) < set(numbers.seen)
    assert not set(numbers.heldout) & set(numbers.seen)


def test_prompts_of_clips_are_those_of_the_script_and_every_digit_and_direction_is_seen():
    scenes = tiny_video_data.split(SEED)
    for name, expected in (("train", scenes.train), ("heldout", scenes.heldout)):
        assert records_of(MOVES / f"{name}.jsonl") == [
            {"prompt": f"the number {scene.number} moves {scene.direction}", "answer": scene.number,
             "direction": scene.direction} for scene in expected
        ]  # fmt: skip
        assert {scene.number for scene in expected} == set("0123456789")
        assert {scene.direction for scene in expected} == set(tiny_video_data.DIRECTIONS)
    assert (len(scenes.train), len(scenes.heldout)) == (30, 10)
    assert not set(scenes.train) & set(scenes.heldout)


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
