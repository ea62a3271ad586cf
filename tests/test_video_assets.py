"""The third quickstart's generator and prompts as they ship, and the script that made them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline

from burnish.utils.paths import ASSETS

SHIPPED = ASSETS / "video_quickstart"
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import tiny_measure  # noqa: E402
import tiny_training  # noqa: E402
import tiny_video  # noqa: E402
import tiny_video_data  # noqa: E402
import tiny_video_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("settings_of_torch")


@pytest.fixture(scope="module")
def pipeline() -> WanPipeline:
    return tiny_video_model.load(SHIPPED / "model")


@pytest.mark.parametrize("length", [tiny_video_model.MAX_TOKENS, 512])  # the other is diffusers' usual one
def test_plain_diffusers_draws_what_moves_as_the_prompt_says(pipeline, length):
    scenes = tiny_video_data.split(tiny_training.SEED).train[::10]
    clips = tiny_video.sample(pipeline, [scene.prompt for scene in scenes], guidance=3.0, seed=0, length=length)
    assert clips.shape == (len(scenes), tiny_video.SAMPLES, 9, 16, 16, 3)
    measured = tiny_measure.measure_clips(clips, scenes)
    assert measured["motion"] > 0.6
    assert measured["ocr"] > 0.4
    assert measured["border"] < 0.05


def test_the_vae_gives_clips_back(pipeline):
    scenes = tiny_video_data.split(tiny_training.SEED).heldout
    clips = torch.stack([tiny_video_data.render(scene, tiny_video_data.STYLES[0]) for scene in scenes])
    with torch.no_grad():
        latents = tiny_video_model.compress(pipeline.vae, clips)
        back = pipeline.vae.decode(latents).sample
    assert latents.shape == (len(scenes), 4, 5, 8, 8)
    measured = tiny_measure.measure_clips(back.movedim(1, -1)[:, None] / 2 + 0.5, scenes)
    assert measured["exact"] > 0.8
    assert measured["motion"] > 0.95


def test_the_shipped_files_are_small_and_name_no_folder_of_the_machine_that_made_them():
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4e6
    for path in files:
        if path.suffix == ".json":
            assert "_name_or_path" not in json.loads(path.read_text(encoding="utf-8")), path


def test_the_script_splits_as_the_shipped_files_do():
    scenes = tiny_video_data.split(tiny_training.SEED)
    for name, expected in (("train.jsonl", scenes.train), ("heldout.jsonl", scenes.heldout)):
        assert tiny_video_data.scenes_of(SHIPPED / name) == expected
        for line, scene in zip((SHIPPED / name).read_text(encoding="utf-8").splitlines(), expected, strict=True):
            assert json.loads(line) == {
                "prompt": f"the number {scene.number} moves {scene.direction}",
                "answer": scene.number,
                "direction": scene.direction,
            }


def test_every_digit_and_direction_is_seen_but_not_every_scene():
    scenes = tiny_video_data.split(tiny_training.SEED)
    assert (len(scenes.train), len(scenes.heldout)) == (30, 10)
    assert not set(scenes.train) & set(scenes.heldout)
    for part in (scenes.train, scenes.heldout):
        assert {scene.number for scene in part} == set("0123456789")
        assert {scene.direction for scene in part} == set(tiny_video_data.DIRECTIONS)


def test_training_reads_prompts_as_the_pipeline_does(pipeline):
    prompts = ["the number 4 moves left", ""]
    ids = tiny_video_model.token_ids(pipeline, prompts)
    for length in (tiny_video_model.MAX_TOKENS, 20):
        expected, _ = pipeline.encode_prompt(prompts, do_classifier_free_guidance=False, max_sequence_length=length)
        found = tiny_video_model.encode(pipeline, ids, length=length)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_digits_are_tokens_of_their_own(pipeline):
    tokens = pipeline.tokenizer.tokenize("the number 4 moves left")
    assert tokens == ["▁the", "▁number", "▁", "4", "▁moves", "▁left"]


def test_renderings_stay_within_their_frame_and_move_a_pixel_a_frame():
    frame = torch.ones(16, 16, dtype=torch.bool)
    frame[1:-1, 1:-1] = False
    for style in tiny_video_data.STYLES[::7]:
        for direction, (x, y) in tiny_video_data.DIRECTIONS.items():
            clip = tiny_video_data.render(tiny_video_data.Scene("8", direction), style)
            assert clip.shape == (9, 16, 16)
            assert (clip[:, frame] == 1).all()
            torch.testing.assert_close(clip[4], clip[3].roll((y, x), (0, 1)), rtol=0, atol=0)
            torch.testing.assert_close(clip[0], clip[1], rtol=0, atol=0)


def test_renderings_are_legible_and_differ():
    scenes = tiny_video_data.split(0).heldout[:4]
    clips = torch.stack([
        torch.stack([tiny_video_data.render(scene, style) for style in tiny_video_data.STYLES[::7]])
        for scene in scenes
    ])  # fmt: skip
    measured = tiny_measure.measure_clips(clips[..., None].expand(*clips.shape, 3) / 2 + 0.5, scenes)
    assert measured["exact"] > 0.9
    assert measured["motion"] == pytest.approx(1)
    assert measured["variety"] > 0.03


@pytest.mark.slow
def test_two_training_runs_give_the_same_bytes(tmp_path, monkeypatch):
    for name in ("STYLES", "FEW_STYLES"):
        monkeypatch.setattr(tiny_video, name, tiny_video_data.STYLES[:1])
    for name in ("one", "two"):
        tiny_video.main(["--vae-steps", "2", "--steps", "2", "--last-steps", "2", "--output", str(tmp_path / name)])
    one, two = tmp_path / "one", tmp_path / "two"
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert Path("model/vae/diffusion_pytorch_model.safetensors") in files
    for file in files:
        assert (one / file).read_bytes() == (two / file).read_bytes(), file


def test_what_the_vae_learns_from_is_what_it_decodes(pipeline):
    clips = torch.stack([tiny_video_data.render(tiny_video_data.Scene("4", "up"), tiny_video_data.STYLES[0])])
    with torch.no_grad():
        latents = tiny_video_model.compress(pipeline.vae, clips)
        made, expected = tiny_video_model.expand(pipeline.vae, latents), pipeline.vae.decode(latents).sample
    torch.testing.assert_close(made.clamp(-1, 1), expected, rtol=0, atol=0)
