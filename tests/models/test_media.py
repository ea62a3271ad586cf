"""Images, videos and sounds of prompts: as transformers' own processors make them, with and without torchvision."""

import json
import shutil
import sys
import wave
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import transformers
from transformers.utils import is_torchvision_available, is_torchvision_v2_available

from burnish.language.logprobs import response_logprobs
from burnish.language.model.base import Audio, Shown, Video
from burnish.language.model.capabilities import own_logprobs
from burnish.models import processors as ours
from burnish.types.completion import Encoded
from tests.support.language_samples import model_of, responses
from tests.support.model_runs import changed, refused, run_of
from tests.support.optional import seldom
from tests.support.sounds import sound_file, tone
from tests.support.talkers import load, written
from tests.support.tiny_language import chat, film, noise_image
from tests.support.universal import TINY, as_documented, universal_folder, universal_model

WITHOUT = pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")


def moving(seed, frames, fps=2.0):
    draw = np.random.default_rng(seed)
    return Video(draw.integers(0, 256, (frames, 24, 36, 3), dtype=np.uint8), fps)


def test_videos_are_told_in_words_and_frames_that_were_chosen_are_all_shown():
    model = model_of("smolvlm")
    text = model.tokenizer.decode(model.encode(*chat(film(4, frames=5, fps=2.0), "?")).ids[0])
    assert "series of five frames from a 0:00:02 [H:MM:SS] video.\n\nFrame from 00:00:<fake" in text
    assert text.count("Frame from 00:01:") == 2
    model = universal_model("qwen3_5")  # whose processor takes two a second, and two make a patch
    free, chosen = (
        model.encode(*chat("See ", replace(moving(1, 8, 8.0), chosen=given), "!")) for given in (False, True)
    )
    assert [int(one.features[0].tensors["video_grid_thw"][0, 0]) for one in (free, chosen)] == [1, 4]


@pytest.mark.parametrize(
    "name", ["qwen2_5_vl", *seldom("internvl", "llava", "llava_next", "mistral3", "idefics3", "gemma3")]
)
def test_a_image_s_tokens_are_counted_by_its_size_where_the_processor_can(name):
    model = universal_model(name)
    for width, height in ((90, 40), (40, 70)):
        asked, shown = chat(noise_image(0, width, height), "What?")
        tokens = model.encode(asked, shown).lengths[0] - model.count_tokens(asked) + 1
        assert model.image_tokens(width, height) in ((None,) if name == "gemma3" else (tokens,))


def test_parts_and_media_must_match():
    model = model_of("qwen2_5_vl")
    messages, shown = chat("a", noise_image(0), "b")
    for given in (Shown([]), Shown([*shown.images] * 2)):
        with pytest.raises(ValueError, match="image"):
            model.encode(messages, given)
    with pytest.raises(ValueError, match="video"):
        model.encode(chat("a")[0], Shown(videos=[film(0)]))
    with pytest.raises(ValueError, match="llama"):
        model_of("llama").encode(*chat("a", noise_image(0)))
    with pytest.raises(ValueError, match="video"):
        model_of("smolvlm").encode(*chat(film(4), noise_image(0)))
    with pytest.raises(ValueError, match="gemma3"):
        universal_model("gemma3").encode(
            [{"role": "user", "content": [{"type": "audio"}]}], Shown(audios=[Audio(tone(), 16000)])
        )


# all tokens of an image see each other, and a cache that other numbers come from
@pytest.mark.parametrize("name", ["gemma3", "llama4_text", *seldom("qwen3_vl")])
def test_half_precision_does_not_hide_another_attention(name):
    as_documented(load(universal_folder(name), dtype="bfloat16"), name)


def heard(model, seconds=1.4):
    parts = [{"type": "audio"}, {"type": "text", "text": "How high?"}]
    return model.encode([{"role": "user", "content": parts}], Shown(audios=[Audio(tone(seconds), model.audio_rate)]))


def test_sounds_of_questions_are_kept_with_the_responses(files):
    (files / "tone.wav").write_bytes(sound_file("wav", tone()))
    (files / "heard.jsonl").write_text(json.dumps({"prompt": "<audio>?", "audios": ["tone.wav"]}) + "\n")
    heard = [f"data.{name}_files={{files}}/heard.jsonl" for name in ("train", "val")] + ["data.train_batch_size=1"]
    refused(files, "qwen2_5_vl", *heard, names=["heard.jsonl:1", "hears none"])
    run = run_of(files, "qwen2_audio", *heard, "validation.every=1")
    run.train("steps=1")
    with wave.open(str(run.output / "validation" / "000001" / "pictures" / "000-0.wav")) as kept:
        samples = np.frombuffer(kept.readframes(16000), "<i2") / 32767
    np.testing.assert_allclose(samples, tone(), atol=1e-4)


def test_short_sounds_are_heard_alike_beside_longer_ones():
    """Qwen3-Omni's convolutions see the longest sound of a forward, up to a second, behind a shorter one."""
    model = universal_model("qwen3_omni_moe_thinker")
    prompts = Encoded.cat([heard(model, seconds) for seconds in (0.15, 0.6, 0.95, 2.2)])
    completion = responses(model, prompts, range(4), [4] * 4)
    wanted = own_logprobs(model, model.network, completion, model.capabilities.fill)
    for layout in ("padded", "packed", "auto"):
        with torch.no_grad():
            found = response_logprobs(model, model.network, completion, temperature=1.0, layout=layout).logprob
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


# Processors that don't fit, or are published in other files


@pytest.mark.parametrize(("name", "change", "says"), [
    ("llava", {"values": {**TINY["llava"].values, "patch_size": 8}}, "tokens: 4, features: 512"),
    ("qwen2_audio", {"parts": {"feature_extractor": ("WhisperFeatureExtractor", {"feature_size": 32})}}, "1, 32"),
])  # fmt: skip
def test_a_processor_that_does_not_go_with_the_model_is_refused_with_the_first_media(name, change, says, tmp_path):
    model = load(written(tmp_path, TINY[name], **change))
    assert len(model.encode(*chat("Hello")).ids[0]) > 1
    with pytest.raises(ValueError, match=says):
        heard(model) if name == "qwen2_audio" else model.encode(*chat("What?", noise_image(0)))


def split(folder):
    """The files of a processor as older versions of transformers wrote them: a file for each part, none for all."""
    about = json.loads((folder / "processor_config.json").read_text())
    for part, file in (("image_processor", "preprocessor_config"), ("video_processor", "video_preprocessor_config")):
        if part in about:
            config = dict(about[part])
            config[f"{part}_type"] = config[f"{part}_type"].removesuffix("Pil") + "Fast" * (part == "image_processor")
            (folder / f"{file}.json").write_text(json.dumps(config))
    rest = {key: value for key, value in about.items() if not isinstance(value, dict | str)}
    (folder / "processor_config.json").unlink()
    if rest:
        (folder / "processor_config.json").write_text(json.dumps(rest))
    changed(folder / "tokenizer_config.json", processor_class=None)


@pytest.mark.parametrize("name", ["qwen2_5_vl", *seldom("qwen3_vl", "smolvlm")])
def test_a_processor_in_files_of_its_parts_gives_the_same_tensors(name, tmp_path):
    folder = shutil.copytree(universal_folder(name), tmp_path / "model")
    found = []
    for change in (lambda: None, lambda: split(folder)):
        change()
        found.append(load(folder).encode(*chat("a ", noise_image(0), " b ", noise_image(1))))
    one, other = found
    assert one.ids[0].tolist() == other.ids[0].tolist()
    assert all(torch.equal(value, other.features[0].tensors[key]) for key, value in one.features[0].tensors.items())
    assert one.features[0].tensors


@WITHOUT
@pytest.mark.parametrize(("name", "key", "named"), [
    ("gemma3", "processor_class", "NoSuchProcessor"), ("gemma3", "processor_class", "Trainer"),
    ("gemma3", "processor_class", "../../evil"),
    ("qwen2_5_vl", "video_processor_type", "Qwen2VLForConditionalGeneration"),
])  # fmt: skip
def test_a_class_that_is_no_processor_is_refused(name, key, named, tmp_path):
    folder = shutil.copytree(universal_folder(name), tmp_path / "model")
    about = json.loads((folder / "processor_config.json").read_text())
    (about if key in about else about["video_processor"])[key] = named
    (folder / "processor_config.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=named[:12]):
        load(folder)


@WITHOUT
def test_nobody_is_told_that_torchvision_is_installed():
    universal_model("qwen3_vl").encode(*chat("a ", noise_image(0)))
    assert not [name for name in sys.modules if name.startswith("torchvision")]
    assert find_spec("torchvision") is None
    assert (is_torchvision_available(), is_torchvision_v2_available()) == (False, False)
    assert transformers.Qwen2VLVideoProcessor.is_dummy
    given = sys.modules["transformers.image_processing_backends"].tvF
    assert not hasattr(given, "__file__")  # as of no module that something else asks
    with pytest.raises(ImportError, match=r"gaussian_blur.*pip install torchvision"):
        _ = given.gaussian_blur


@WITHOUT
def test_a_video_processor_that_imports_torchvision_by_its_older_name_is_read(tmp_path):
    folder = shutil.copytree(universal_folder("qwen2_5_vl"), tmp_path / "model")
    video = json.loads((folder / "processor_config.json").read_text())["video_processor"]
    video |= {"video_processor_type": "Ernie4_5_VLMoeVideoProcessor", "draw_on_frames": False}
    changed(folder / "processor_config.json", video_processor=video)
    assert load(folder).encode(*chat("a ", noise_image(0))).features[0].tensors


def test_what_stands_in_for_torchvision_does_as_it_does():
    image = torch.arange(12, dtype=torch.uint8).view(3, 2, 2)
    bordered = ours.pad(image[None], [1, 0, 2, 3], fill=[7, 8, 9])[0]
    assert bordered[1].tolist() == [[8, 4, 5, 8, 8], [8, 6, 7, 8, 8], *[[8] * 5] * 3]
    assert torch.equal(ours.crop(bordered, 0, 1, 2, 2), image)
    assert ours.pad(image / 2, (1, 0, 0, 0))[0].tolist() == [[0, 0, 0.5], [0, 1, 1.5]]
    assert torch.equal(ours.pil_to_tensor(ours.to_pil_image(image)), image)
    assert ours.to_pil_image(image).getpixel((1, 0)) == (1, 5, 9)
    for image in (torch.full((2, 3, 9, 7), 200, dtype=torch.uint8), torch.full((3, 9, 7), 0.25)):
        for mode in ("bilinear", "bicubic", "nearest", "nearest-exact", "lanczos"):
            resized = ours.resize(image, (20, 5), interpolation=ours.InterpolationMode(mode))
            assert resized.shape == (*image.shape[:-2], 20, 5)
            torch.testing.assert_close(resized, torch.full_like(resized, image.flatten()[0].item()))
    steps = torch.arange(4.0).repeat(3, 4, 1)
    # half as wide: a triangle over the three nearest pixels, of weights 3, 3 and 1
    torch.testing.assert_close(ours.resize(steps, (4, 2))[0, 0], torch.tensor([5 / 7, 16 / 7]))
