"""Sounds and videos are decoded, bounded, and open nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("av")

from burnish.types.media import Fit, Media
from burnish.utils import containers
from burnish.utils.containers import all_frames, check_sound, check_video, choose_frames, read_sound, video_shape
from burnish.utils.video import encode_clip
from tests.support.sounds import sound_file, tone

FRAMES = np.repeat(np.arange(0, 250, 25, dtype=np.uint8), 16 * 32 * 3).reshape(10, 16, 32, 3)


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "ogg"])
def test_a_sound_is_read_in_one_channel_at_the_rate_that_is_asked_for(kind):
    rate = 48000 if kind == "ogg" else 24000
    heard = read_sound(sound_file(kind, tone(0.5, rate), rate, channels=2), 16000)
    assert heard.dtype == np.float32
    assert abs(len(heard) - 8000) < 1200  # codecs add silence at the ends
    middle = heard[2000:6000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert spectrum.argmax() * 16000 / len(middle) == pytest.approx(440, abs=8)
    assert np.abs(middle).max() == pytest.approx(0.5, rel=0.1)


def test_a_sound_at_its_own_rate_keeps_every_sample():
    samples = tone()
    np.testing.assert_allclose(read_sound(sound_file("flac", samples), 16000), samples, atol=1 / 32000)


def test_a_sound_that_is_too_long_is_refused_before_all_of_it_is_in_memory(monkeypatch):
    monkeypatch.setattr(containers, "LONGEST", 1)
    data = sound_file("flac", np.zeros(60 * 16000, np.float32))
    with pytest.raises(OSError, match="lasts more than 1 s"):
        read_sound(data, 16000)
    check_sound(data)


@pytest.mark.parametrize("read", [lambda data: read_sound(data, 16000), check_sound, all_frames, check_video])
def test_what_is_neither_is_refused(read):
    for data in (b"", b"RIFF", b"no media at all" * 100, sound_file("wav", tone())[:30]):
        with pytest.raises(OSError, match="can't be decoded"):
            read(data)


def test_lists_of_files_are_not_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clip.mp4").write_bytes(encode_clip(FRAMES, 8.0))
    (tmp_path / "sound.wav").write_bytes(sound_file("wav", tone()))
    for name, read in (("clip.mp4", check_video), ("sound.wav", check_sound)):
        read((tmp_path / name).read_bytes())
        for text in (f"ffconcat version 1.0\nfile {name}\n", f"#EXTM3U\n#EXTINF:1,\n{name}\n#EXT-X-ENDLIST\n"):
            with pytest.raises(OSError, match="can't be decoded"):
                read(text.encode())


def test_frames_are_chosen_by_count_and_rate():
    data = encode_clip(FRAMES, 8.0)
    frames, fps = all_frames(data)
    few, rate, total = choose_frames(data, lambda count, rate: [0, count - 1] if rate == 8.0 else [])
    assert (len(frames), fps, rate, total) == (10, 8.0, 8.0, 10)
    np.testing.assert_array_equal(np.stack(few), np.stack([frames[0], frames[-1]]))
    assert video_shape(data) == (32, 16, 10, 8.0)


def test_a_video_that_takes_too_much_memory_is_refused_before_all_of_it_is_decoded(monkeypatch):
    clip = Media.encoded(encode_clip(FRAMES, 8.0), "video")
    monkeypatch.setattr(containers, "LARGEST", 5 * 16 * 32 * 3)
    for read in (clip.decode, clip.video):
        with pytest.raises(OSError, match=r"frames of 32 x 16 take more than .* data\.video_max_frames"):
            read()
    few = replace(clip, fit=Fit(max_frames=5))
    assert few.decode() == (32, 16)
    assert len(few.video()[0]) == 5


def test_the_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(ImportError, match=re.escape("sound files need PyAV: pip install 'burnish[data]'")):
        read_sound(b"", 16000)
