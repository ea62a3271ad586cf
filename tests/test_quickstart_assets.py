"""The quickstart's generator and prompts as they ship, and the script that made them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from burnish.utils.paths import ASSETS

SHIPPED = ASSETS / "quickstart"
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import pretrain_tiny  # noqa: E402
import tiny_data  # noqa: E402
import tiny_measure  # noqa: E402
import tiny_pipeline  # noqa: E402
import tiny_training  # noqa: E402

pytestmark = pytest.mark.usefixtures("settings_of_torch")


@pytest.fixture(scope="module")
def pipeline() -> StableDiffusion3Pipeline:
    pipeline = StableDiffusion3Pipeline.from_pretrained(
        SHIPPED / "model", vae=None, text_encoder_3=None, tokenizer_3=None, local_files_only=True
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def draw(pipeline: StableDiffusion3Pipeline, prompts: list[str], **options: object) -> torch.Tensor:
    noise = [torch.Generator().manual_seed(seed) for seed in range(len(prompts))]
    return pipeline(
        prompt=prompts, height=128, width=256, num_inference_steps=8, output_type="latent",
        generator=noise, **options,
    ).images  # fmt: skip


def prompts_of(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (SHIPPED / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("options", [
    {"guidance_scale": 1.0, "max_sequence_length": 0},
    {"guidance_scale": 3.0, "max_sequence_length": 0},
    {"guidance_scale": 1.0},  # diffusers' default: 256 zero tokens in place of the T5 encoder
])  # fmt: skip
def test_plain_diffusers_draws_dark_digits_on_white(pipeline, options):
    pictures = draw(pipeline, ["the number 472", "the number 815", ""], **options)
    assert pictures.shape == (3, 1, 16, 32)
    assert pictures.dtype == torch.float32
    darkness = (1 - pictures.clamp(-1, 1)) / 2
    frame = torch.ones(16, 32, dtype=torch.bool)
    frame[1:-1, 1:-1] = False
    assert darkness[..., frame].mean() < 0.03
    assert 0.05 < darkness.mean() < 0.4


def test_guidance_writes_what_the_prompt_says(pipeline):
    numbers = ["472", "815", "306", "951"]
    pictures = draw(pipeline, [f"the number {n}" for n in numbers], guidance_scale=3.0, max_sequence_length=0)
    assert tiny_measure.measure(pictures[:, None], numbers)["reward"] > 0.6


def test_the_shipped_files_are_small():
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 6e6


def test_prompts_are_well_formed_and_held_out_numbers_are_new():
    train, heldout = prompts_of("train.jsonl"), prompts_of("heldout.jsonl")
    assert (len(train), len(heldout)) == (240, 48)
    for row in train + heldout:
        assert row["prompt"] == f"the number {row['answer']}"
        assert len(row["answer"]) == 3
        assert row["answer"].isdigit()
    answers = [row["answer"] for row in train + heldout]
    assert len(set(answers)) == len(answers)


def test_the_script_splits_as_the_shipped_files_do():
    numbers = tiny_data.split(tiny_training.SEED)
    assert [row["answer"] for row in prompts_of("train.jsonl")] == list(numbers.train)
    assert [row["answer"] for row in prompts_of("heldout.jsonl")] == list(numbers.heldout)
    assert set(numbers.train) < set(numbers.seen)
    assert not set(numbers.heldout) & set(numbers.seen)


def test_training_reads_prompts_as_the_pipeline_does(pipeline):
    prompts = ["the number 472", ""]
    ids = tiny_pipeline.token_ids(pipeline, prompts)
    for blanks in (0, 3):
        tokens, pooled = tiny_pipeline.encode(pipeline, ids, blanks=blanks)
        wanted, _, wanted_pooled, _ = pipeline.encode_prompt(
            prompts, None, None, do_classifier_free_guidance=False, max_sequence_length=blanks
        )
        torch.testing.assert_close(tokens, wanted, rtol=0, atol=0)
        torch.testing.assert_close(pooled, wanted_pooled, rtol=0, atol=0)


def test_digits_are_tokens_of_their_own(pipeline):
    tokens = pipeline.tokenizer.tokenize("the number 472")
    assert tokens == ["the</w>", "number</w>", "4</w>", "7</w>", "2</w>"]


def test_renderings_are_repeatable_and_stay_within_their_frame():
    for style in tiny_data.STYLES:
        picture = tiny_data.render("888", style)
        tiny_data.typeface.cache_clear()
        torch.testing.assert_close(tiny_data.render("888", style), picture, rtol=0, atol=0)
        assert picture.shape == (1, 16, 32)
        assert (picture[:, [0, -1]] == 1).all()
        assert (picture[:, :, [0, -1]] == 1).all()


def test_every_font_is_legible_and_styles_differ():
    styles = tiny_data.STYLES[::9]
    pictures = torch.stack([tiny_data.render("472", style) for style in styles])
    measured = tiny_measure.measure(pictures[None], ["472"])
    assert measured["exact"] == 1
    assert measured["variety"] > 0.03


def test_two_training_runs_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        pretrain_tiny.main(["--steps", "2", "--output", str(tmp_path / name)])
    one, two = tmp_path / "one", tmp_path / "two"
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert Path("model/transformer/diffusion_pytorch_model.safetensors") in files
    for file in files:
        assert (one / file).read_bytes() == (two / file).read_bytes(), file


def test_the_batch_of_a_step_depends_on_seed_and_step_alone():
    numbers = tiny_data.split(0)
    part, again = (pretrain_tiny.draw(numbers, seed=0, step=5) for _ in range(2))
    torch.testing.assert_close(part.clean, again.clean, rtol=0, atol=0)
    torch.testing.assert_close(part.noise, again.noise, rtol=0, atol=0)
    assert not torch.equal(part.noise, pretrain_tiny.draw(numbers, seed=0, step=6).noise)
