"""Pictures, videos and sounds of prompts: as transformers' own processors make them, with and without torchvision."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers import AutoConfig, InternVLProcessor
from transformers.utils import is_torchvision_available, is_torchvision_v2_available

from burnish.language.logprobs import response_logprobs
from burnish.language.model import Audio, Shown, Video
from burnish.models import pixel_functions as ours
from burnish.types.completion import Encoded
from burnish.utils.errors import UserError
from tests.support.language_samples import folder_of, model_of, responses
from tests.support.model_runs import changed
from tests.support.sounds import tone
from tests.support.talkers import audio_rate, example, load, processor, written
from tests.support.tiny_language import chat, film, picture
from tests.support.tiny_run import burnish
from tests.support.universal import TINY, load_universal, own_logprobs, universal_folder, universal_model

WITHOUT = pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
NAMES = {"images": "pixel_values", "image_grid": "image_grid_thw", "videos": "pixel_values_videos",
         "video_grid": "video_grid_thw"}  # fmt: skip
MOVING = ["qwen3_5", "internvl", "gemma4", "glm46v", "llava_onevision", "smolvlm", "minicpmv4_6"]
HEARING = ["qwen3_omni_moe_thinker", "qwen2_5_omni_thinker", "qwen2_audio", "glmasr", "phi4_multimodal"]
OFTEN = ("qwen3_5", "qwen2_audio")
SAMPLED = {"do_sample_frames": True, "fps": 2, "min_frames": 4, "max_frames": 8}


def moving(seed, frames, fps=2.0):
    draw = np.random.default_rng(seed)
    return Video(draw.integers(0, 256, (frames, 24, 36, 3), dtype=np.uint8), fps)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_media_are_processed_as_transformers_own_processor_does(family, tmp_path):
    folder = shutil.copytree(folder_of(family), tmp_path / "model")
    changed(folder / "video_preprocessor_config.json", **SAMPLED)
    mine, theirs = load(folder), load_universal(folder)
    for parts in (
        ("Look: ", film(4, frames=4, fps=2.0), picture(2, 24, 40), "<|video_pad|>", picture(1)),
        *((moving(1, frames, 10.0), "?") for frames in (30, 10, 300) if family == "qwen3_vl"),
        (picture(5, 50, 34), "still", Video(np.stack([np.asarray(picture(5, 50, 34))] * 4))),
    ):
        one, other = (model.encode(*chat(*parts)) for model in (mine, theirs))
        assert one.ids[0].tolist() == other.ids[0].tolist()
        assert torch.equal(one.positions[0], other.positions[0])
        found, expected = one.features[0].tensors, other.features[0].tensors
        shared = {own: name for own, name in NAMES.items() if name in expected}
        assert shared
        for own, name in shared.items():
            torch.testing.assert_close(found[own].float(), expected[name].float(), rtol=0, atol=0.02)


def test_smolvlm_tells_of_a_video_in_words():
    model = model_of("smolvlm")
    text = model.tokenizer.decode(model.encode(*chat(film(4, frames=5, fps=2.0), "?")).ids[0])
    assert "series of five frames from a 0:00:02 [H:MM:SS] video.\n\nFrame from 00:00:<fake" in text
    assert text.count("Frame from 00:01:") == 2
    with pytest.raises(UserError):
        model.encode(*chat(film(4), picture(0)))


def test_tiles_skip_the_ends_of_long_videos_and_numbers_are_words():
    from burnish.models.language.tiles import TileVideos, in_words

    sampling = {"fps": 1, "max_frames": 4, "video_size": {"longest_edge": 32}}
    config = {"max_image_size": {"longest_edge": 16}, "image_mean": [0.5], "image_std": [0.5]}
    videos = TileVideos.read(config | {"do_sample_frames": True, "video_sampling": sampling})
    short, long = (Video(np.zeros((count, 8, 8, 3), np.uint8), 2.0) for count in (6, 40))
    assert videos.sample(short) == [0, 2, 5]
    assert videos.sample(long) == [2, 14, 26, 38]
    assert videos.process(short)[0].shape == (3, 3, 16, 16)
    words = {12: "twelve", 20: "twenty", 64: "sixty-four", 100: "one hundred", 321: "three hundred and twenty-one"}
    assert {number: in_words(number) for number in words} == words


def test_parts_and_media_must_match():
    model = model_of("qwen2_5_vl")
    messages, shown = chat("a", picture(0), "b")
    for given in (Shown([]), Shown([*shown.images] * 2)):
        with pytest.raises(UserError, match=f"1 image parts, but {len(given.images)} images"):
            model.encode(messages, given)
    with pytest.raises(UserError, match="0 video parts, but 1 videos"):
        model.encode(chat("a")[0], Shown(videos=[film(0)]))
    with pytest.raises(UserError):
        model_of("llama").encode(*chat("a", picture(0)))
    deaf = universal_model("gemma3")
    assert deaf.audio_rate is None
    with pytest.raises(UserError):
        deaf.encode([{"role": "user", "content": [{"type": "audio"}]}], Shown(audios=[Audio(tone(), 16000)]))


# Log-probs are those of the class's own forward


def heard(model, *pitches, seconds=()):
    """A question about sounds of unequal lengths."""
    lengths = seconds or [1.1 + pitch / 1000 for pitch in pitches]
    parts = [*({"type": "audio"} for _ in pitches), {"type": "text", "text": "How high?"}]
    sounds = [
        Audio(tone(length, pitch=pitch), model.audio_rate) for length, pitch in zip(lengths, pitches, strict=True)
    ]
    return model.encode([{"role": "user", "content": parts}], Shown(audios=sounds))


def assert_own(model, prompts, index, lengths, layouts):
    completion = responses(model, prompts, index, lengths)
    wanted = own_logprobs(model, completion, 1.0)
    for layout in layouts:
        with torch.no_grad():
            found = response_logprobs(model, model.network, completion, temperature=1.0, layout=layout).logprob
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.thorough] * (one not in OFTEN)) for one in (*MOVING, *HEARING)]
)
def test_log_probs_of_videos_and_sounds_are_those_of_the_class(name):
    model, reads = universal_model(name), TINY[name].reads
    asked = [model.encode(*chat("How are you today?")[:2])]
    if "image" in reads:
        asked.append(model.encode(*chat("What is ", picture(0, 30, 20), "?")))
    if "video" in reads:
        asked += [model.encode(*chat("See ", moving(seed, count), "!")) for seed, count in ((1, 4), (2, 7))]
    if "audio" in reads:  # GLM-ASR's processor takes one sound of a prompt
        asked += [heard(model, 300.0), heard(model, *([900.0] if name == "glmasr" else [900.0, 500.0]))]
    prompts = Encoded.cat(asked)
    assert sum(features.size > 0 for features in prompts.features) >= 2
    index = [*range(len(prompts)), len(prompts) - 1]
    assert_own(model, prompts, index, [3 + row % 4 for row in range(len(index))], ["auto"])


def test_short_sounds_are_heard_alike_beside_longer_ones():
    """Qwen3-Omni's convolutions see the longest sound of a forward, up to a second, behind a shorter one."""
    model = universal_model("qwen3_omni_moe_thinker")
    assert model.least_audio == 1.0
    assert universal_model("qwen2_audio").least_audio == 0
    prompts = Encoded.cat([heard(model, 500.0, seconds=[seconds]) for seconds in (0.15, 0.6, 0.95, 2.2)])
    assert len({*prompts.lengths[:3]}) == 1
    assert_own(model, prompts, range(4), [4] * 4, ["padded", "packed", "auto"])


def test_chosen_frames_are_all_shown():
    model = universal_model("qwen3_5")  # whose processor takes two a second, and two make a patch
    free, chosen = (
        model.encode(*chat("See ", replace(moving(1, 8, 8.0), chosen=given), "!")) for given in (False, True)
    )
    assert [int(one.features[0].tensors["video_grid_thw"][0, 0]) for one in (free, chosen)] == [1, 4]


def test_what_has_an_entry_for_each_token_goes_on_with_the_last_one():
    from burnish.models.language.own.collation import Conversation, Trial, learn
    from burnish.types.completion import Features

    def alone(chosen):
        tokens = 5 + sum(chosen)
        mask = torch.arange(tokens)[None, :, None, None].expand(1, tokens, len(chosen), 2)
        return {"input_ids": torch.zeros(1, tokens), "cross_attention_mask": mask}

    collation, _, exact = learn(Trial(alone, alone))
    assert (collation.per_token, collation.axes, exact) == ({"cross_attention_mask"}, {}, False)
    prompt = Features({"cross_attention_mask": alone([0])["cross_attention_mask"]})
    rows = [Conversation(torch.ones(length, dtype=torch.long), prompt) for length in (5, 8)]
    assert collation.groups(rows) == [[0], [1]]
    found = collation.padded(rows[1:], 0, side="right")["cross_attention_mask"]
    assert found[0, :, 0, 1].tolist() == [0, 1, 2, 3, 4, 4, 4, 4]


# Processors that don't fit, or are published in other files


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("molmo2", {"image_patch_id", "image_start_token_id"}), ("llava", {"image_token_index"}),
        ("phi4_multimodal", {"vision_config.image_token_id", "audio_config.audio_token_id"}),
    ],
)  # fmt: skip
def test_every_id_that_stands_for_media_is_known(kind, names):
    from burnish.models.language.universal import UniversalModel

    config = AutoConfig.for_model(kind)
    found = UniversalModel._placeholders(SimpleNamespace(processor=object(), config=config))
    assert {attrgetter(name)(config) for name in names} <= set(found)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("llava", {"values": {"patch_size": 8}}, "tokens: 4, features: 512"),
        ("qwen2_audio", {"parts": {"feature_extractor": ("WhisperFeatureExtractor", {"feature_size": 32})}}, "1, 32"),
    ],
)
def test_a_processor_that_does_not_go_with_the_model_is_refused_with_the_first_media(name, change, says, tmp_path):
    tiny = TINY[name]
    more = {key: {**getattr(tiny, key), **value} if key == "values" else value for key, value in change.items()}
    model = load_universal(written(tmp_path, tiny, **more))
    assert len(model.encode(*chat("Hello")).ids[0]) > 1
    with pytest.raises(UserError, match=says):
        heard(model, 300.0) if name == "qwen2_audio" else model.encode(*chat("What?", picture(0)))


@pytest.mark.parametrize("reads", [True, False])
def test_pictures_are_given_in_one_list_where_lists_of_prompts_are_refused(reads, monkeypatch):
    """As GOT-OCR 2 does, for which they are the pages of one picture; and it reads no text without a picture."""
    own = InternVLProcessor.__call__

    def flat(self, images=None, **more):
        if images is None:
            raise ValueError("there must be a picture")
        if isinstance(images[0], list) or not reads:
            raise ValueError("its pages don't fit")
        return own(self, images=images, **more)

    monkeypatch.setattr(InternVLProcessor, "__call__", flat)
    if not reads:
        with pytest.raises(UserError, match="its pages don't fit"):
            load_universal(universal_folder("internvl"))
        return
    model = load_universal(universal_folder("internvl"))
    assert "image" in model.readable
    with pytest.raises(UserError, match="there must be a picture"):
        model.encode(*chat("Hello"))


def split(folder, *, name_processor=True):
    """The files of a processor as older versions of transformers wrote them: a file for each part."""
    about = json.loads((folder / "processor_config.json").read_text())
    for part, file in (("image_processor", "preprocessor_config"), ("video_processor", "video_preprocessor_config")):
        if part in about:
            config = about[part] | ({"processor_class": about["processor_class"]} if name_processor else {})
            config[f"{part}_type"] = config[f"{part}_type"].removesuffix("Pil") + "Fast" * (part == "image_processor")
            (folder / f"{file}.json").write_text(json.dumps(config))
    rest = {key: value for key, value in about.items() if not isinstance(value, dict | str)}
    (folder / "processor_config.json").unlink()
    if rest:
        (folder / "processor_config.json").write_text(json.dumps(rest))


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "smolvlm"])
def test_files_of_parts_give_the_same_tensors(name, tmp_path):
    burnish("tiny", name, tmp_path / "model")
    first = example(tmp_path / "model")
    split(tmp_path / "model")
    again = example(tmp_path / "model")
    assert first.keys() == again.keys()
    assert all(np.array_equal(first[key], again[key]) for key in first)


def test_the_type_of_the_model_names_a_processor_that_no_file_names(tmp_path):
    folder = shutil.copytree(universal_folder("qwen2_5_vl"), tmp_path / "model")
    split(folder, name_processor=False)
    (folder / "video_preprocessor_config.json").unlink()  # of Qwen2.5-VL only the picture processor's is published
    changed(folder / "tokenizer_config.json", processor_class=None)
    assert type(processor(folder)).__name__ == "Qwen2_5_VLProcessor"
    assert type(processor(folder).video_processor).__name__ == "Qwen2VLVideoProcessor"
    assert processor(universal_folder("granite")) is None, "it reads text alone"


@WITHOUT
@pytest.mark.parametrize(
    ("name", "key", "named"),
    [
        ("gemma3", "processor_class", "NoSuchProcessor"), ("gemma3", "processor_class", "Trainer"),
        ("gemma3", "processor_class", "../../evil"), ("gemma3", "processor_class", "Qwen2VLVideoProcessor"),
        ("qwen2_5_vl", "video_processor_type", "Qwen2VLForConditionalGeneration"),
    ],
)  # fmt: skip
def test_a_class_that_is_no_processor_is_refused(name, key, named, tmp_path):
    folder = shutil.copytree(universal_folder(name), tmp_path / "model")
    about = json.loads((folder / "processor_config.json").read_text())
    (about if key in about else about["video_processor"])[key] = named
    (folder / "processor_config.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match=named[:12]):
        processor(folder)


def test_a_package_that_is_missing_is_named_with_the_class(monkeypatch):
    def missing(*args, **kwargs):
        raise ImportError("Gemma3Processor requires the Ghost library but it was not found\nmore")

    monkeypatch.setattr("transformers.AutoProcessor.from_pretrained", missing)
    monkeypatch.setattr("burnish.models.language.processors.class_without_torchvision", missing)
    with pytest.raises(UserError, match="the Ghost library"):
        processor(universal_folder("gemma3"))


@WITHOUT
def test_pictures_are_processed_by_pil_and_videos_frame_by_frame():
    for name, ends in (("gemma3", "Pil"), ("llama4", "Processor")):
        assert type(processor(universal_folder(name)).image_processor).__name__.endswith(ends)
        assert "Pil" not in (universal_folder(name) / "processor_config.json").read_text()
    assert [audio_rate(name) for name in ("qwen2_audio", "phi4_multimodal", "gemma3")] == [16000, 16000, None]
    frames = np.stack([np.asarray(Image.new("RGB", (16, 16), (level, 0, 0))) for level in (0, 255)])
    reads = processor(universal_folder("internvl"))
    found = reads(
        text=["<video>"], videos=[frames], do_sample_frames=False, return_tensors="pt",
        video_metadata=[{"fps": 2.0, "total_num_frames": 2, "duration": 1.0}],
    )  # fmt: skip
    red = found["pixel_values"][:, 0]
    assert red.flatten(1).std(1).max() < 1e-6
    assert red[1].mean() - red[0].mean() == pytest.approx(1 / reads.video_processor.image_std[0], rel=1e-3)


# What stands in for torchvision gives its numbers

MODES = ("bilinear", "bicubic", "nearest", "nearest-exact")


def test_resizing_keeps_what_is_constant_and_its_type():
    for image in (torch.full((2, 3, 9, 7), 200, dtype=torch.uint8), torch.full((3, 9, 7), 0.25)):
        for mode in (*MODES, "lanczos"):
            resized = ours.resize(image, (20, 5), interpolation=ours.InterpolationMode(mode))
            assert resized.shape == (*image.shape[:-2], 20, 5)
            torch.testing.assert_close(resized, torch.full_like(resized, image.flatten()[0].item()))
    steps = torch.arange(4.0).repeat(3, 4, 1)
    # half as wide: a triangle over the three nearest pixels, of weights 3, 3 and 1
    torch.testing.assert_close(ours.resize(steps, (4, 2))[0, 0], torch.tensor([5 / 7, 16 / 7]))
    assert torch.equal(ours.resize(steps, (4, 2), interpolation=2), ours.resize(steps, (4, 2)))


def test_borders_rectangles_and_colours():
    image = torch.arange(12.0).reshape(3, 2, 2)
    padded = ours.pad(image, [1, 0, 0, 2], fill=[7, 8, 9])
    assert padded.shape == (3, 4, 3)
    assert padded[:, 3].tolist() == [[7.0] * 3, [8.0] * 3, [9.0] * 3]
    assert torch.equal(ours.crop(padded, 0, 1, 2, 2), image)
    assert torch.equal(ours.grayscale_to_rgb(image[:1]), image[:1].repeat(3, 1, 1))
    assert ours.rgb_to_grayscale(torch.ones(3, 1, 1)).item() == pytest.approx(0.9999)
    colours = np.arange(18, dtype=np.uint8).reshape(3, 2, 3)
    assert torch.equal(ours.pil_to_tensor(Image.fromarray(colours)), torch.from_numpy(colours).permute(2, 0, 1))
    assert np.array_equal(ours.to_pil_image(torch.from_numpy(colours).permute(2, 0, 1)), colours)
    assert np.array_equal(ours.to_pil_image(torch.full((1, 2, 3), 0.5)), np.full((2, 3), 127))
    whole = ours.to_dtype(torch.arange(256, dtype=torch.uint8), torch.float32, scale=True)
    assert whole[[0, 255]].tolist() == [0.0, 1.0]
    assert torch.equal(ours.to_dtype(whole, torch.uint8, scale=True), torch.arange(256, dtype=torch.uint8))
    with pytest.raises(ImportError, match="gaussian_blur"):
        ours._functional().gaussian_blur  # noqa: B018


@WITHOUT
def test_nobody_is_told_that_torchvision_is_installed():
    assert type(processor(universal_folder("qwen3_vl")).video_processor).__module__.startswith("transformers.")
    assert not [name for name in sys.modules if name.startswith("torchvision")]
    assert find_spec("torchvision") is None
    assert (is_torchvision_available(), is_torchvision_v2_available()) == (False, False)
    assert transformers.Qwen2VLVideoProcessor.is_dummy
