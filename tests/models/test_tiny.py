"""Every tiny model is written, loaded by the library alone, and draws or reads what it says."""

from __future__ import annotations

import inspect
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from burnish.models.tiny import ALL, calls, describe, describe_any, describe_language
from burnish.models.tiny import build as pipelines
from burnish.models.tiny.language import LANGUAGE
from burnish.models.tiny.language import build as language
from burnish.models.tiny.language.calls import example_prompt
from burnish.models.tiny.language.calls import load as load_language
from burnish.models.tiny.language.calls import trial as read
from burnish.utils.errors import UserError
from tests.support.tiny_run import burnish

DRAWING = {"sd3", "flux-kontext", "z-image", "sdxl", "wan2.2-i2v", "ace-step", "hunyuan-video-i2v"}
READING = {"qwen2_5_vl", "gemma3", "gemma4", "internvl", "mistral3", "kimi_k25", "qwen3_omni_moe_thinker", "gpt_oss"}
# pipelines that leave out frames at the start, or draw from the global generator
FEWER_FRAMES = {"hunyuan-video-i2v": 5}
DRAWS_FROM_ELSEWHERE = {"cogview4-control", "sd3-controlnet"}
LARGEST = 5 << 20  # bytes of the directory of a language model


def every(tinies, often):
    return [pytest.param(one, id=one.name, marks=[pytest.mark.thorough] * (one.name not in often)) for one in tinies]


def skip_what_is_missing(tiny):
    if absent := pipelines.missing(tiny):
        pytest.skip(f"needs {', '.join(absent)}")


@pytest.mark.parametrize("tiny", every(ALL, DRAWING))
def test_a_pipeline_draws_after_it_was_written(tiny, tmp_path):
    skip_what_is_missing(tiny)
    burnish("tiny", tiny.name, tmp_path / "model")
    pipeline = calls.load(tmp_path / "model")
    assert type(pipeline).__name__ == tiny.pipeline
    made = calls.trial(tiny, pipeline, steps=2, seed=0)
    assert np.isfinite(made).all()
    assert made.std() > 0.01
    assert tiny.height is None or made.shape[-3:-1] == (tiny.height, tiny.width)
    assert tiny.num_frames is None or made.shape[1] == FEWER_FRAMES.get(tiny.name, tiny.num_frames)


@pytest.mark.parametrize("tiny", every(ALL, {"instruct-pix2pix"}))
def test_prompt_and_pictures_matter(tiny, monkeypatch):
    skip_what_is_missing(tiny)
    pipeline = pipelines.build(tiny, seed=0)
    pipeline.set_progress_bar_config(disable=True)

    def drawn():
        return calls.trial(tiny, pipeline, steps=2, seed=0)

    first, again = drawn(), drawn()
    assert tiny.name in DRAWS_FROM_ELSEWHERE or (first == again).all()
    if tiny.prompt:
        with monkeypatch.context() as other:
            other.setattr(calls, "PROMPT", "two apples on the table")
            assert np.abs(drawn() - first).mean() > 1e-3 * first.std()
    if set(tiny.inputs.values()) - {"text", "mask", "video mask"}:
        original = calls.picture
        monkeypatch.setattr(calls, "picture", lambda height, width, seed: original(height, width, seed + 7))
        assert np.abs(drawn() - first).mean() > 1e-3 * first.std()


@pytest.mark.parametrize("tiny", every(LANGUAGE, READING))
def test_a_language_model_reads_after_it_was_written(tiny, tmp_path):
    skip_what_is_missing(tiny)
    folder = tmp_path / "model"
    burnish("tiny", tiny.name, folder)
    assert sum(path.stat().st_size for path in folder.rglob("*")) < LARGEST
    network, reader = load_language(folder)
    assert type(network).__name__ == tiny.model
    assert reader.__class__.__name__ == tiny.processor or not tiny.processor
    prompts: list[tuple[Any, ...]] = [(), *((kind,) for kind in tiny.places)]
    prompts += [("image",) * 3] * ("image" in tiny.places)
    if tiny.name == "paligemma":  # transformers refuses prompts of it without a picture
        prompts.remove(())
    for kinds in prompts:
        first, other = (read(network, example_prompt(folder, reader, kinds, seed)) for seed in (0, 3))
        assert first.isfinite().all()
        assert 0.5 < first.std() < 5, kinds
        assert not kinds or (first - other).abs().max() > 1e-3, f"{kinds} change nothing"


def test_descriptions_fit_their_classes():
    for tiny in ALL:
        kind = getattr(diffusers, tiny.pipeline)
        taken, called = inspect.signature(kind).parameters, inspect.signature(kind.__call__).parameters
        assert {*tiny.parts, *tiny.values} <= set(taken), tiny.name
        sizes = {name for name in ("height", "width", "num_frames") if getattr(tiny, name) is not None}
        assert {*tiny.call, *tiny.inputs, *sizes} <= set(called), tiny.name
        needed = {name for name, one in taken.items() if one.default is one.empty} - set(tiny.values)
        assert needed <= set(pipelines.parts_of(tiny, kind)), tiny.name
    for one in LANGUAGE:
        assert one.name in CONFIG_MAPPING
        assert getattr(transformers, one.model).config_class is CONFIG_MAPPING[one.name]
        assert bool(one.processor) == bool(one.places) == bool(one.parts)
    assert len({one.pipeline for one in ALL}) >= 90
    assert len({one.model for one in LANGUAGE}) >= 50
    assert sum("image" in one.places for one in LANGUAGE) >= 25
    assert sum("audio" in one.places for one in LANGUAGE) >= 5


@pytest.mark.parametrize(
    "build",
    [lambda seed: pipelines.build(describe("z-image"), seed=seed).transformer,
     lambda seed: language.build(describe_language("qwen3_5"), seed=seed)[0]],
    ids=["z-image", "qwen3_5"],
)  # fmt: skip
def test_weights_depend_on_the_seed_alone_and_none_is_nothing(build):
    torch.manual_seed(1)
    first = build(3)
    torch.manual_seed(2)
    again, other = build(3), build(4)
    weights = dict(first.named_parameters())
    assert all(torch.equal(weights[name], value) for name, value in again.named_parameters())
    assert not any(torch.equal(weights[name], value) for name, value in other.named_parameters() if value.ndim > 1)
    assert all(value.any() for value in weights.values()), "no gradient would pass a layer of zeros"


def test_names_lead_to_one_model():
    for tinies in (ALL, LANGUAGE):
        names = [name.lower() for one in tinies for name in (one.name, *one.also)]
        assert len(names) == len(set(names))
    assert describe("WanPipeline").name == "wan2.1"
    assert describe("FLUXPIPELINE").name == "flux"
    assert describe_any("Qwen3VLForConditionalGeneration").name == "qwen3_vl"
    assert describe_any("wan2.2").kind == "WanPipeline"
    for find, name, near in (
        (describe, "wan2.3", "wan2.2"), (describe, "WanVACEPipelin", "WanVACEPipeline"),
        (describe_language, "gemma33", "gemma3"), (describe_any, "qwen3-vlm", "qwen3-vlm"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=near):
            find(name)
