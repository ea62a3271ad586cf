"""Sounds in records and chat messages."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")

from burnish.data.decoding import check_media
from burnish.data.language.prompts import read_questions
from burnish.options.language import LanguageDataOptions
from burnish.types.prompt import Part, Prompt
from burnish.utils.errors import UserError
from tests.support.sounds import sound_file, tone

SAMPLES = tone()
FLAC = sound_file("flac", SAMPLES)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tone.flac").write_bytes(FLAC)
    (tmp_path / "broken.flac").write_bytes(FLAC[:20])
    return tmp_path


def read(folder, *records, **options) -> list[Prompt]:
    (folder / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_questions(str(folder / "data.jsonl"), LanguageDataOptions(train_files="x", **options))


def test_a_sound_can_be_given_in_many_ways(folder):
    encoded = base64.b64encode(FLAC).decode()
    ways: list[Any] = [
        {"prompt": "<audio>What?", "audio": "tone.flac"},
        {"prompt": "What?", "audios": ["tone.flac"]},
        {"prompt": "What?", "audio": {"path": "tone.flac"}},
        {"prompt": "What?", "audio": f"data:audio/flac;base64,{encoded}"},
        {"prompt": "What?", "audio": {"array": SAMPLES.tolist(), "sampling_rate": 16000}},
        {"prompt": [{"role": "user", "content": [{"type": "audio", "audio": "tone.flac"}, _what()]}]},
        {"prompt": [{"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": "tone.flac"}}, _what()]}]},
        {"prompt": [{"role": "user", "content": [{"type": "audio"}, _what()]}], "audio": "tone.flac"},
        {"prompt": [{"role": "user", "content": [
            {"type": "input_audio", "input_audio": {"data": encoded, "format": "flac"}}, _what()]}]},
    ]  # fmt: skip
    prompts = read(folder, *ways)
    for prompt in prompts:
        assert prompt.messages[0].parts == (Part("audio"), Part("text", "What?"))
        assert prompt.text == "<audio>What?"
        np.testing.assert_allclose(prompt.audios[0].audio(16000), SAMPLES, atol=1 / 16000)
    assert len({prompt.uid for prompt in prompts}) == 2  # of the file, and of the array


def _what() -> dict[str, str]:
    return {"type": "text", "text": "What?"}


def test_a_key_can_be_named_and_sounds_keep_their_places(folder):
    record = {"prompt": "first <audio> then <audio>", "clips": ["tone.flac"] * 2}
    (prompt,) = read(folder, record, audios_key="clips")
    assert [part.kind for part in prompt.messages[0].parts] == ["text", "audio", "text", "audio"]
    assert prompt.media == prompt.audios
    assert len(prompt.audios) == 2


def test_prompts_without_sounds_keep_their_uid(folder):
    (silent,) = read(folder, {"prompt": "What?"})
    assert silent.uid == Prompt(text="What?").uid


WRONG = [
    ({"prompt": "<audio>"}, "has 0 sounds, but 1 placeholders for them; write <audio> into the question"),
    ({"prompt": "What?", "audio": "gone.flac"}, "has a sound .* that can't be read: No such file"),
    ({"prompt": "What?", "audio": "broken.flac"}, "has a sound .*broken.flac that can't be decoded"),
    ({"prompt": "What?", "audio": "http://127.0.0.1:9/x.wav"}, "download it: Burnish opens no URLs"),
    ({"prompt": "What?", "audio": 3}, "has a sound that is 3"),
    ({"prompt": "What?", "audio": {"array": [[[0.0]]], "sampling_rate": 16000}}, "is not a sound"),
    ({"prompt": "What?", "audio": {"array": ["a"], "sampling_rate": 16000}}, "is not a sound"),
    ({"prompt": "What?", "audio": {"array": [0.0, 1.0], "sampling_rate": 0}}, "is not a sound: that must be from 1 to"),
    (
        {"prompt": "What?", "audio": {"array": [0.0, 1.0], "sampling_rate": 2**32}},
        "is not a sound: that must be from 1 to",
    ),
    ({"prompt": "What?", "audio": {"array": [0.0]}}, "has a sound with keys 'array'"),
    ({"prompt": "What?", "audio": [[0.0, 1.0]]}, "give {'array': ..., 'sampling_rate': ...}"),
    ({"prompt": "What?", "audio": "/dev/zero"}, "pipe or a device"),
]


@pytest.mark.parametrize(("record", "why"), WRONG)
def test_a_wrong_sound_is_named_with_its_record(folder, record, why):
    with pytest.raises(UserError) as caught:
        read(folder, {"prompt": "a"}, record)
    assert re.search(f"data.jsonl:2: .*{why}", str(caught.value)), str(caught.value)


def test_a_sound_that_breaks_off_is_found_before_the_run(folder):
    (folder / "long.flac").write_bytes(b"fLaC" + sound_file("flac", tone(3))[4:4000] + b"\0" * 100)
    (folder / "long.flac").write_bytes(sound_file("ogg", tone(3, 48000), 48000)[:60])
    with pytest.raises(UserError, match=r"long\.flac that can't be decoded"):
        read(folder, {"prompt": "What?", "audio": "long.flac"})
    (prompt,) = read(folder, {"prompt": "What?", "audio": "tone.flac"})
    check_media([("a:1", prompt.audios[0])])


def test_sizes_of_pictures_and_videos_reach_the_prompt(folder):
    from PIL import Image

    Image.new("RGB", (64, 32)).save(folder / "a.png")
    (prompt,) = read(
        folder, {"prompt": "<image><video>?", "images": ["a.png"], "videos": [["a.png"] * 8]},
        max_pixels=512, video_max_frames=2, video_max_pixels=128,
    )  # fmt: skip
    assert prompt.images[0].image().size == (32, 16)
    assert prompt.videos[0].video()[0].shape == (2, 8, 16, 3)
    with pytest.raises(ValueError, match="min_pixels is 5, but max_pixels is 4"):
        LanguageDataOptions(train_files="x", min_pixels=5, max_pixels=4)
