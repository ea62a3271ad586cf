"""Clips and sounds on the page of a run: they play, the page stays small, and foreign files do no harm."""

import math
from pathlib import Path

import numpy as np
import pytest

from burnish.config.run_folder import RunFolder
from burnish.report import media
from burnish.types.clips import Clip
from burnish.types.media import Media
from burnish.utils import video
from tests.support.clips import moving_square, tone
from tests.support.drawing import noise
from tests.support.reports import Story, change_samples, draw_instead, page_of, run_folder

STORY = Story(updates=10, steps=10, guided=False)
SMALL = moving_square(4)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run with one prompt and one sample."""
    made = run_folder(tmp_path / "run", STORY)
    for update in made.validations():
        file = made.validation(update) / "samples.jsonl"
        file.write_text(file.read_text().splitlines()[0] + "\n")
    return made


def test_clips_play_in_the_page(folder: RunFolder):
    draw_instead(folder, lambda update, sample: SMALL)
    page = page_of(folder)
    assert page.tags.count("video") == 2
    assert all(address.startswith("data:video/mp4;base64,") for address in page.addresses)
    assert "Each pair of clips began from the same noise" in page.text
    assert "10 policy updates of 8 prompts × 12 clips" in page.text


def test_clips_with_sound_have_controls_and_begin_in_silence(folder: RunFolder):
    draw_instead(folder, lambda update, sample: moving_square(4, sound=True))
    page_of(folder)
    assert folder.report.read_text().count("<video controls loop muted") == 2


def test_sounds_can_be_heard(folder: RunFolder):
    draw_instead(folder, lambda update, sample: tone(1.0))
    page = page_of(folder)
    assert page.tags.count("audio") == 2
    assert "<h2>Sounds</h2>" in folder.report.read_text()


def test_long_sounds_are_made_shorter(folder: RunFolder):
    draw_instead(folder, lambda update, sample: tone(20.0, rate=48000, channels=2))
    assert all(len(address) < 500_000 for address in page_of(folder).addresses)


def test_without_pyav_clips_are_animated_pictures_with_their_sound(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    draw_instead(folder, lambda update, sample: moving_square(4, sound=True))
    page = page_of(folder)
    assert {address.partition(";")[0] for address in page.addresses} == {"data:image/webp", "data:audio/wav"}


def test_large_clips_are_made_smaller(folder: RunFolder):
    frames = np.stack([noise(i, 640, 360) for i in range(6)])
    draw_instead(folder, lambda update, sample: Clip(frames=frames, fps=4))
    page = page_of(folder)
    file = folder.validation(0) / "pictures" / "000-00.mp4"
    assert all(len(address) < file.stat().st_size / 4 for address in page.addresses)
    assert 'width="256" height="144"' in folder.report.read_text()


def test_beyond_the_budget_a_frame_stands_for_its_clip(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    draw_instead(folder, lambda update, sample: SMALL)
    address = 22 + 4 * math.ceil((folder.validation(0) / "pictures" / "000-00.mp4").stat().st_size / 3)
    monkeypatch.setattr(media, "CLIPS", 1.0)
    monkeypatch.setattr(media.Embedded.__init__, "__defaults__", (2 * address - 1,))
    page = page_of(folder)
    assert [address.partition(";")[0] for address in page.addresses] == ["data:video/mp4", "data:image/jpeg"]


@pytest.mark.parametrize(
    "content",
    [b"", b"nothing", b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n", None],
    ids=["empty", "text", "list", "cut"],
)
def test_a_file_that_is_no_clip_is_not_shown(folder: RunFolder, content: bytes | None):
    draw_instead(folder, lambda update, sample: SMALL)
    for update in folder.validations():
        file = folder.validation(update) / "pictures" / "000-00.mp4"
        file.write_bytes(file.read_bytes()[:500] if content is None else content)
    page = page_of(folder)
    assert page.addresses == []
    assert "no picture" in page.text


@pytest.mark.parametrize("name", ["../../../../secret.mp4", "../samples.jsonl", "config.yaml", "", 3, None])
def test_only_samples_are_shown(folder: RunFolder, name: object):
    (folder.path.parent / "secret.mp4").write_bytes(video.encode_clip(SMALL.frames, 4))
    change_samples(folder, file=name)
    assert page_of(folder).addresses == []


def test_what_samples_begin_from_is_beside_them(folder: RunFolder):
    for update in folder.validations():
        Media.array(noise(5)).image().save(folder.validation(update) / "pictures" / "000-input-0.png")
    change_samples(folder, images=["000-input-0.png"])
    page = page_of(folder)
    assert len(page.addresses) == 3
    assert "is what the samples begin from" in page.text
