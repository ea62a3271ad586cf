"""Images, videos and sounds: what they are read as, within which limits, and that nothing broken starts a run."""

import io
import pickle
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from burnish import load
from burnish.tasks.evaluate import prompt_images
from burnish.tasks.sample_files import _file as kept_file
from burnish.types.media import Fit, Media
from burnish.types.prompt import Prompt
from burnish.types.samples import Sound, is_finite, writable
from tests.support.clips import clip_file, moving_square
from tests.support.drawing import promised
from tests.support.records import GENERATOR, LANGUAGE, SIZED, refused, write

NOISE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
SMALL = NOISE[:28, :28]
RAMP = np.linspace(0, 2**16 - 1, 64).astype(np.uint16).reshape(8, 8)
FRAMES = np.repeat(np.arange(0, 250, 25, dtype=np.uint8), 16 * 32 * 3).reshape(10, 16, 32, 3)


def encoded(kind, image=NOISE, **how):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, **how)
    return buffer.getvalue()


def refused_at(folder, images):
    for name, content in images.items():
        (folder / name).write_bytes(content)
    records = [{"prompt": "<image>What is it?", "images": [name], "answer": "1"} for name in images]
    path = write(folder / "data.jsonl", *records)
    messages = refused(LANGUAGE, path, "algorithm=grpo", "rewards.exact=null", "rewards.format.weight=1")
    return [message.removeprefix(f"{path}:") for message in messages]


def test_broken_and_extreme_images_are_refused_by_record_before_weights_are_loaded(tmp_path):
    images = {"a.png": encoded("PNG", SMALL), "long.png": encoded("PNG", np.zeros((2, 402, 3), np.uint8))}
    images |= {f"{i}.jpg": encoded("JPEG")[:700] for i in range(11)}  # whose headers are whole
    long, *broken = refused_at(tmp_path, images)
    assert long.startswith("2: ")
    assert "402 x 2" in long
    assert [line.partition(": ")[0] for line in broken] == [str(number) for number in range(3, 10)]
    assert all("decoded" in line for line in broken)
    cut = {kind: encoded(kind, SMALL)[: len(encoded(kind, SMALL)) * 2 // 3] for kind in ("PNG", "WEBP")}
    assert [line.partition(": ")[0] for line in refused_at(tmp_path, cut)] == ["1", "2"]
    (tmp_path / "b.png").write_bytes(encoded("PNG", NOISE[:6, :8])[:-100])
    shown = {"prompt": "p", "image": "b.png"}
    (said,) = refused(GENERATOR, write(tmp_path / "data.jsonl", shown), "algorithm=sft", *SIZED)
    assert "b.png" in said
    assert "decoded" in said


def test_a_image_of_16_bits_keeps_its_greys_and_others_are_converted_as_pil_does():
    """PIL's own conversion makes everything above 255 white: of an X-ray nothing would be left."""
    for form in ("PNG", "TIFF", "PPM"):
        found = np.asarray(Media.encoded(encoded(form, RAMP)).image())
        assert found.shape == (8, 8, 3)
        assert np.abs(found[..., 0].astype(int) - RAMP / 257).max() < 1
    grey = Image.fromarray((RAMP >> 8).astype(np.uint8)).convert("RGB")
    for mode, form in (("1", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("CMYK", "TIFF"), ("YCbCr", "TIFF")):
        buffer = io.BytesIO()
        grey.convert(mode).save(buffer, form)
        found = Media.encoded(buffer.getvalue()).image()
        np.testing.assert_array_equal(found, Image.open(buffer).convert("RGB"), mode)
    fractions = Media.encoded(encoded("TIFF", (RAMP / 2**16).astype(np.float32)))  # nobody knows what is white
    for look in (fractions.decode, fractions.image):
        with pytest.raises(OSError, match="8 bits"):
            look()


def test_postscript_is_refused_and_never_run(monkeypatch):
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", "gs")
    monkeypatch.setattr(subprocess, "check_call", lambda *_, **__: pytest.fail("a program was started"))
    text = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) (w) file\nshowpage\n%%EOF\n"
    iptc = bytes.fromhex("1c031400020008 1c031e00020008 1c033c00020100 1c0378000105 1c080a") + len(text).to_bytes(2)
    for media in (Media.encoded(text), Media.encoded(iptc + text)):  # the second is an image of IPTC that holds it
        for look in (media.check, media.size, media.decode, media.image):
            with pytest.raises(OSError, match="PNG"):
                look()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_image_of_too_many_pixels_is_refused_by_its_header():
    media = Media.encoded(promised(13_000, 13_000))
    for look in (media.check, media.decode, media.image):
        with pytest.raises(OSError, match="13000 x 13000"):
            look()


def fitted(**limits):
    return replace(Media.array(NOISE), fit=Fit(**limits)).image().size


def test_a_image_is_brought_within_its_limits_and_keeps_its_shape():
    assert fitted() == fitted(min_pixels=100, max_pixels=5000) == (60, 40)
    assert (fitted(max_pixels=600), fitted(min_pixels=9600)) == ((30, 20), (120, 80))
    for most in (1, 7, 333, 2399):
        assert 0 < np.prod(fitted(max_pixels=most)) <= most
    for least in (2401, 5555):
        width, height = fitted(min_pixels=least)
        assert width * height >= least
        assert width / height == pytest.approx(1.5, rel=0.05)
    assert replace(Media.array(NOISE), fit=Fit(max_pixels=10)) == Media.array(NOISE), "it is the same image"
    with pytest.raises(ValueError, match="min_pixels is 5"):
        load("vlm_quickstart", "data.min_pixels=5", "data.max_pixels=4")


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "ogg"])
def test_a_sound_is_read_in_one_channel_at_the_rate_that_is_asked_for(kind):
    pytest.importorskip("av")
    from tests.support.sounds import sound_file, tone

    rate = 48000 if kind == "ogg" else 24000
    heard = Media.encoded(sound_file(kind, tone(0.5, rate), rate, channels=2), "audio").audio(16000)
    assert heard.dtype == np.float32
    assert abs(len(heard) - 8000) < 1200  # codecs add silence at the ends
    middle = heard[2000:6000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert spectrum.argmax() * 16000 / len(middle) == pytest.approx(440, abs=8)
    assert np.abs(middle).max() == pytest.approx(0.5, rel=0.1)
    if kind == "flac":
        for given in (tone(), np.stack([tone(), tone()]), (tone() * 32767).round().astype(np.int16)):
            np.testing.assert_allclose(Media.sound(given, 16000).audio(16000), tone(), atol=1 / 16000)
        assert len(Media.sound(tone(), 16000).audio(8000)) == pytest.approx(4000, abs=32)


def test_what_is_neither_is_refused_and_lists_of_files_are_not_followed(tmp_path, monkeypatch):
    pytest.importorskip("av")
    from tests.support.sounds import sound_file, tone

    monkeypatch.chdir(tmp_path)
    contents = {"clip.mp4": clip_file(FRAMES), "sound.wav": sound_file("wav", tone())}
    lists = []
    for name, content in contents.items():
        Path(name).write_bytes(content)
        kind = "video" if name == "clip.mp4" else "audio"
        Media.encoded(content, kind).decode()
        lists += [f"ffconcat version 1.0\nfile {name}\n", f"#EXTM3U\n#EXTINF:1,\n{name}\n#EXT-X-ENDLIST\n"]
    for data in (b"", b"RIFF", b"no media at all" * 100, contents["sound.wav"][:30], *map(str.encode, lists)):
        for kind in ("video", "audio"):
            with pytest.raises(OSError, match="decoded"):
                Media.encoded(data, kind).decode()
    with pytest.raises(OSError, match="decoded"):
        Media.encoded(contents["sound.wav"], "video").decode()


def test_clips_and_sounds_know_whether_they_are_finite_and_come_back_from_a_file(tmp_path):
    pytest.importorskip("av")
    clip = moving_square(6)
    frames, fps = Media.encoded(clip_file(clip.frames, clip.fps), "video").video()
    assert (frames.shape, fps) == (clip.frames.shape, 4)
    assert np.abs(frames.astype(int) - clip.frames).mean() < 2  # colours are stored at half the resolution
    (tmp_path / "a.flac").write_bytes(b"flac")
    given = {"image": Media.array(SMALL), "movie": Media.movie([Media.array(one) for one in FRAMES], 5.0),
             "sound": Media.encoded(b"RIFF", "audio"), "film": Media.encoded(b"film", "video"),
             "file": Media.file(tmp_path / "a.flac", "audio")}  # fmt: skip
    names = {stem: kept_file(tmp_path, stem, media) for stem, media in given.items()}
    assert names == {
        "image": "image.png",
        "movie": "movie.mp4",
        "sound": "sound.wav",
        "film": "film.mp4",
        "file": "file.flac",
    }
    assert [(tmp_path / names[stem]).read_bytes() for stem in ("sound", "film", "file")] == [b"RIFF", b"film", b"flac"]
    frames, fps = Media.file(tmp_path / "movie.mp4", "video").video()
    assert (frames.shape, fps) == (FRAMES.shape, 5)
    shown = dict(prompt_images(Prompt(text="", images=(given["image"],), videos=(given["movie"],))))
    assert [*shown] == ["0", *(f"1-{number}" for number in range(len(shown) - 1))]
    assert np.array_equal(shown["1-0"], FRAMES[0])
    silent = Sound.of(np.array([[0.5, np.nan, np.inf]]), 8)
    assert silent.samples.tolist() == [[0.5, 0.0, 0.0]]
    assert all(map(is_finite, [FRAMES[0], clip]))
    assert not any(map(is_finite, [replace(clip, finite=False), replace(clip, sound=silent), silent]))
    sent = pickle.loads(pickle.dumps(clip))
    sent.frames.flags.writeable = False  # as Ray delivers them
    assert writable(sent).frames.flags.writeable
