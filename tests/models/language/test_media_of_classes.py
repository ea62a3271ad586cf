"""What a class makes of its media: ids that stand for them, and processors that another model came with."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace

import pytest
from transformers import AutoConfig, InternVLProcessor

from burnish.language.model import Shown
from burnish.models.language.loading import load_language_model
from burnish.models.language.own.trials import samples
from burnish.models.language.universal import UniversalModel
from burnish.models.tiny.language import LANGUAGE
from burnish.models.tiny.language.build import write
from burnish.options.language import LanguageModelOptions
from burnish.utils.errors import UserError
from tests.support.tiny_language import chat, picture
from tests.support.universal import load_universal, universal_folder


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("molmo2", {"image_patch_id", "image_start_token_id"}),
        ("llava", {"image_token_index"}),
        ("phi4_multimodal", {"vision_config.image_token_id", "audio_config.audio_token_id"}),
    ],
)
def test_every_id_that_stands_for_media_is_known(kind, names):
    config = AutoConfig.for_model(kind)
    found = UniversalModel._placeholders(SimpleNamespace(processor=object(), config=config))
    assert {attrgetter(name)(config) for name in names} <= set(found)


def test_a_processor_that_counts_other_tokens_than_the_model_is_refused_with_the_first_picture(tmp_path):
    tiny = next(one for one in LANGUAGE if one.name == "llava")
    write(replace(tiny, values={**tiny.values, "patch_size": 8}), tmp_path, 0)
    options = LanguageModelOptions(path=str(tmp_path), device="cpu", family="transformers")
    model = load_language_model(options)
    assert len(model.encode(*chat("Hello")).ids[0]) > 1
    with pytest.raises(UserError, match=r"as image: the model and its processor.* tokens: 4, features: 512; fetch"):
        model.encode(*chat("What?", picture(0)))


def test_sounds_that_the_model_can_not_hear_are_refused_with_the_first_of_them(tmp_path):
    tiny = next(one for one in LANGUAGE if one.name == "qwen2_audio")
    write(replace(tiny, parts={"feature_extractor": ("WhisperFeatureExtractor", {"feature_size": 32})}), tmp_path, 0)
    model = load_language_model(LanguageModelOptions(path=str(tmp_path), device="cpu", family="transformers"))
    assert len(model.encode(*chat("Hello")).ids[0]) > 1
    with pytest.raises(UserError, match=r"as audio: the model and its processor.*expected input\[1, 32, 3000\]"):
        model.encode([{"role": "user", "content": [{"type": "audio"}]}], Shown(audios=samples("audio", 16000)[:1]))


def test_pictures_are_given_in_one_list_where_lists_of_prompts_are_refused(monkeypatch):
    """As GOT-OCR 2 does, for which they are the pages of one picture; and it reads no text without a picture."""
    own, given = InternVLProcessor.__call__, []

    def flat(self, images=None, **more):
        if images is None:
            raise ValueError("there must be a picture")
        if isinstance(images[0], list):
            raise ValueError("nested pictures are pages")
        given.append(images)
        return own(self, images=images, **more)

    monkeypatch.setattr(InternVLProcessor, "__call__", flat)
    model = load_universal(universal_folder("internvl"))
    assert "image" in model.readable
    assert given
    with pytest.raises(
        UserError, match=r"takes no prompt of text alone \(there must be a picture\); give each a picture"
    ):
        model.encode(*chat("Hello"))


def test_the_error_of_a_prompt_with_pictures_is_told_where_no_prompt_is_read(monkeypatch):
    def refuse(self, images=None, **more):
        raise ValueError("there must be a picture" if images is None else "its pages don't fit")

    monkeypatch.setattr(InternVLProcessor, "__call__", refuse)
    with pytest.raises(UserError, match="takes no prompt: its pages don't fit; give a model that transformers runs on"):
        load_universal(universal_folder("internvl"))
