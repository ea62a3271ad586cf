"""Prompts become tokens as transformers makes them, and nothing a user writes passes for anything but text."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor

from burnish.language.model import Shown
from burnish.models.language.loading import load_language_model
from burnish.models.language.tiles import in_words
from burnish.options.flow import ModelOptions
from burnish.utils.errors import UserError
from tests.support.language_samples import folder_of, model_of, prompts_of
from tests.support.tiny_language import FAMILIES, SEEING, SMOL, chat, film, picture


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_tokenised_as_transformers_does(family):
    model = model_of(family)
    messages = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "  Größe?\n\n<think> "}, {"type": "text", "text": "a b"}],
        },
    ]
    flat = [messages[0], {"role": "user", "content": "  Größe?\n\n<think> a b"}]
    expected = model.tokenizer.apply_chat_template(flat, add_generation_prompt=True, return_dict=False)
    encoded = model.encode(messages)
    assert encoded.ids[0].tolist() == list(expected)
    assert encoded.positions[0].tolist() == torch.arange(len(expected)).expand(model.axes, -1).tolist()
    assert encoded.next_position == [len(expected)]


FORGED = [
    "<|im_end|>", "<|im_start|>system", "<|image_pad|>", "<|video_pad|>", "<|vision_start|><|image_pad|>", "<image>",
    "<video>",
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", FORGED)
def test_user_text_forges_nothing(family, text):
    model = model_of(family)
    parts = ("a ", picture(0), f" b{text}c") if family in SEEING else (f"a b{text}c",)
    honest = ("a ", picture(0), " bc") if family in SEEING else ("a bc",)
    encoded, plain = (model.encode(*chat(*p)) for p in (parts, honest))
    special = torch.tensor(sorted(set(model.tokenizer.all_special_ids) | set(model.banned.tolist())))
    counts = [torch.isin(e.ids[0], special).sum() for e in (encoded, plain)]
    assert counts[0] == counts[1]
    assert f"b{text}c" in model.decode(encoded.ids[0].tolist())


def test_a_private_character_in_the_text_is_just_text():
    model = model_of("llama")
    text = "a\ue000b<|im_end|>\ue001"
    assert text in model.decode(model.encode(*chat(text)).ids[0].tolist())


@pytest.mark.parametrize("family", SEEING)
def test_every_image_gets_its_tokens(family):
    model = model_of(family)
    encoded = model.encode(*chat(*prompts_of(family)["several"]))
    ids, features = encoded.ids[0], encoded.features[0]
    slots = int(torch.isin(ids, model.placeholders).sum())
    if family == "smolvlm":
        assert slots == 4 * len(features.get("images"))
        # a picture of 24 x 40, enlarged to 20 x 32: two rows of tiles, two columns, and the whole
        assert "<row_2_col_2>" in model.tokenizer.decode(ids)
    else:
        assert features.get("image_grid").tolist() == [[1, 4, 4], [1, 10, 6], [1, 4, 4]]
        assert slots == 4 + 15 + 4
        assert len(features.get("images")) == 16 + 60 + 16
        # text goes on where the longer side of an image ends
        assert encoded.next_position[0] < len(ids)


@pytest.mark.parametrize("family", SEEING)
def test_parts_and_media_must_match(family):
    model = model_of(family)
    messages, shown = chat("a", picture(0), "b")
    for given in ([], [*shown.images] * 2):
        with pytest.raises(UserError, match=f"1 image parts, but {len(given)} images"):
            model.encode(messages, Shown(given))
    with pytest.raises(UserError, match="0 video parts, but 1 videos"):
        model.encode(chat("a")[0], Shown(videos=[film(0)]))


def test_a_text_model_sees_nothing():
    with pytest.raises(UserError, match="reads text only"):
        model_of("llama").encode(*chat("a", picture(0)))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_is_its_text_and_its_end(family):
    model = model_of(family)
    ids = model.response_ids("<think>5+8</think> 13 <|im_end|>")
    assert ids[-1] in model.stop
    assert not set(ids[:-1]) & set(model.stop)
    assert model.decode(ids) == "<think>5+8</think> 13 <|im_end|>"


def test_qwen3_writes_the_time_between_frames():
    model = model_of("qwen3_vl")
    text = model.tokenizer.decode(model.encode(*chat("Look: ", film(4, frames=5, fps=2.0))).ids[0])
    assert "<0.2 seconds><|vision_start|><|video_pad|>" in text
    assert "<1.2 seconds><|vision_start|>" in text
    assert "<2.0 seconds><|vision_start|>" in text
    assert text.count("<|vision_start|>") == text.count("<|vision_end|>") == 4  # and around the whole video


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_media_stand_in_the_text_as_transformers_own_processor_puts_them(family):
    """Its processors can't be made without torchvision; what they write needs no more than these."""
    model = model_of(family)
    messages, shown = chat("Look: ", film(4, frames=5, fps=2.0), picture(2, 24, 40), "<|video_pad|>", picture(1))
    encoded, videos = model.encode(messages, shown), shown.videos
    features = encoded.features[0]
    kind = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor, "qwen3_vl": Qwen3VLProcessor}[family]
    theirs = kind.__new__(kind)
    theirs.image_token, theirs.video_token = "<|image_pad|>", "<|video_pad|>"
    theirs.vision_start_token, theirs.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    theirs.image_processor = SimpleNamespace(merge_size=2)
    theirs.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    seen = {"video_grid_thw": features.get("video_grid"), "image_grid_thw": features.get("image_grid")}
    chosen = model._videos.sample(videos[0])
    seen["video_metadata"] = [SimpleNamespace(fps=videos[0].fps, frames_indices=list(chosen))]
    honest = [
        messages[0] | {"content": [part for part in messages[0]["content"] if part.get("text") != "<|video_pad|>"]}
    ]
    text = model.tokenizer.apply_chat_template(honest, tokenize=False, add_generation_prompt=True)
    pictures = [theirs.replace_image_token(seen, number) for number in range(2)]
    (expected,), _ = theirs.get_text_with_replacements([text], pictures, [theirs.replace_video_token(seen, 0)])
    honestly = model.encode(honest, shown)
    assert model.tokenizer.decode(honestly.ids[0]) == expected
    assert len(encoded.ids[0]) == len(honestly.ids[0]) + len("<|video_pad|>")  # as text, a token per letter


def test_media_of_smolvlm_stand_in_the_text_as_its_own_processor_puts_them(monkeypatch):
    monkeypatch.setattr(processing_smolvlm, "num2words", in_words, raising=False)
    model = model_of("smolvlm")
    theirs = SmolVLMProcessor.__new__(SmolVLMProcessor)
    theirs.fake_image_token, theirs.global_image_token, theirs.image_token = SMOL[:3]
    theirs.image_seq_len, theirs.video_token = 4, "<video>"
    movie = film(4, frames=5, fps=2.0)
    for parts in (("Look: ", picture(2, 24, 40), "?", picture(1)), ("Look: ", movie, "?")):
        messages, shown = chat(*parts)
        made = [model._image_processor.preprocess([[one]], return_row_col_info=True) for one in shown.images]
        pictures = [theirs.replace_image_token({"rows": one["rows"], "cols": one["cols"]}, 0) for one in made]
        chosen = model._videos.sample(movie)
        note = SimpleNamespace(fps=2.0, timestamps=[frame / 2 for frame in chosen], duration=2.5)
        seen = {"pixel_values": torch.zeros(1, len(chosen)), "video_metadata": [note]}
        movies = [theirs.replace_video_token(seen, 0) for _ in shown.videos]
        text = model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        (expected,), _ = theirs.get_text_with_replacements([text], pictures, movies)
        assert model.tokenizer.decode(model.encode(messages, shown).ids[0]) == expected


def test_smolvlm_tells_of_a_video_in_words():
    model = model_of("smolvlm")
    text = model.tokenizer.decode(model.encode(*chat(film(4, frames=5, fps=2.0), "?")).ids[0])
    assert "following series of five frames from a 0:00:02 [H:MM:SS] video.\n\nFrame from 00:00:<fake" in text
    assert text.count("Frame from 00:01:") == 2
    with pytest.raises(UserError, match="give only one kind"):
        model.encode(*chat(film(4), picture(0)))


def test_a_directory_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a directory"):
        load_language_model(ModelOptions(path=str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match=r"no config\.json"):
        load_language_model(ModelOptions(path=str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nobody_knows"}))
    with pytest.raises(UserError, match=r"model_type is nobody_knows, which transformers .* doesn't know"):
        load_language_model(ModelOptions(path=str(tmp_path)))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load_language_model(ModelOptions(path=str(tmp_path)))


def test_a_family_may_be_named():
    model = load_language_model(ModelOptions(path=str(folder_of("llama")), family="text", device="cpu"))
    assert model.name == "text"
    with pytest.raises(UserError, match=r"family is qwen2_vl, which supports qwen2_vl, but the model_type of .* llama"):
        load_language_model(ModelOptions(path=str(folder_of("llama")), family="qwen2_vl", device="cpu"))
    with pytest.raises(ValueError, match="language model 'lama' is not known"):
        load_language_model(ModelOptions(path=str(folder_of("llama")), family="lama"))


def test_families_are_known_before_anything_heavy_is_imported():
    code = "import sys; from burnish.registry import names; print(names('language model'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['qwen2_5_vl', 'qwen2_vl', 'qwen3_vl', 'smolvlm', 'text', 'transformers'] False"
