"""Pictures side by side."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from burnish.utils.images import FRAME, GAP, LABEL_WIDTH, LARGE, PAPER, RIGHT, SMALL, WRONG, grid, strip, waveform

SCALE = SMALL // 32  # of a picture of 32 pixels
W, H = 32 * SCALE, 16 * SCALE


def flat(value: int, height: int = 16, width: int = 32) -> np.ndarray:
    return np.full((height, width, 3), value, dtype=np.uint8)


def cell(sheet: Image.Image, row: int, column: int, width: int, height: int, left: int = GAP) -> np.ndarray:
    """What is inside the frame at a place of the grid."""
    x = left + column * (width + 2 * FRAME + GAP) + FRAME
    y = GAP + row * (height + 2 * FRAME + GAP) + FRAME
    return np.asarray(sheet)[y : y + height, x : x + width]


def test_every_picture_is_in_its_row_and_column():
    sheet = grid([flat(value) for value in (0, 50, 100, 150, 200)], columns=2)
    assert sheet.size == (GAP + 2 * (W + 2 * FRAME + GAP), GAP + 3 * (H + 2 * FRAME + GAP))
    for i, value in enumerate((0, 50, 100, 150, 200)):
        assert (cell(sheet, i // 2, i % 2, W, H) == value).all()
    assert (cell(sheet, 2, 1, W, H) == PAPER).all()


def test_pixels_are_enlarged_sharply():
    picture = np.random.RandomState(0).randint(0, 256, (16, 32, 3), dtype=np.uint8)
    sheet = grid([picture], columns=1)
    scale = (sheet.width - 2 * (GAP + FRAME)) // 32
    assert scale > 1
    assert (cell(sheet, 0, 0, 32 * scale, 16 * scale) == picture.repeat(scale, 0).repeat(scale, 1)).all()


def test_large_pictures_become_small_enough_to_look_at():
    sheet = grid([flat(9, 1024, 768)] * 4, columns=4)
    assert LARGE < sheet.height < LARGE + 50
    assert (cell(sheet, 0, 3, 288, LARGE) == 9).all()


def test_gray_pictures_are_pictures_too():
    assert (cell(grid([np.full((16, 32), 7, np.uint8)], columns=1), 0, 0, W, H) == 7).all()


def test_frames_tell_right_from_wrong():
    sheet = grid([flat(255)] * 3, columns=3, verdicts=[True, False, None])
    step = W + 2 * FRAME + GAP
    assert [sheet.getpixel((GAP + i * step, GAP)) for i in range(3)] == [RIGHT, WRONG, PAPER]
    for i in range(3):
        assert (cell(sheet, 0, i, W, H) == 255).all()


@pytest.mark.parametrize(
    "label",
    ["the number 472", "a lighthouse " * 30, "word" * 200, "", "灯台 ünïcödé", "two\nlines\tand tabs"],
)
def test_labels_stay_beside_the_pictures(label):
    sheet = grid([flat(255)] * 2, columns=2, labels=[label])
    bare = grid([flat(255)] * 2, columns=2)
    assert sheet.height == bare.height
    left = sheet.width - bare.width
    assert left <= LABEL_WIDTH + 3 * GAP
    for i in range(2):
        assert (cell(sheet, 0, i, W, H, left=GAP + left) == 255).all()
    written = (np.asarray(sheet)[:, :left] != PAPER).any()
    assert written == bool(label)


def test_a_label_belongs_to_its_row():
    sheet = grid([flat(255)] * 4, columns=2, labels=["", "here"])
    ink = (np.asarray(sheet)[:, :30] != PAPER).any(axis=(1, 2))
    assert not ink[: sheet.height // 2].any()
    assert ink[sheet.height // 2 :].any()


def test_images_of_other_shapes_are_fitted_into_the_first_ones_size():
    sheet = grid([flat(0), flat(9, 32, 32), flat(9, 4, 64)], columns=3)
    square, wide = (cell(sheet, 0, column, W, H)[..., 0] for column in (1, 2))
    assert ((square == 9).sum(0) == H).tolist() == [8 * SCALE <= x < 24 * SCALE for x in range(W)]
    assert ((wide == 9).sum(1) == W).tolist() == [7 * SCALE <= y < 9 * SCALE for y in range(H)]


def test_frames_of_a_clip_are_side_by_side_and_as_large_as_pictures():
    frames = [flat(value, 16, 16) for value in (0, 80, 160)]
    side_by_side = strip(frames)
    assert [side_by_side[8, x, 0] for x in (8, 25, 42)] == [0, 80, 160]
    assert tuple(side_by_side[8, 16]) == PAPER
    sheet = grid([side_by_side], columns=1, across=3)
    assert sheet.height == grid([frames[0]], columns=1).height


def test_a_waveform_is_as_high_as_the_sound_is_loud():
    samples = np.concatenate([np.zeros(5000), np.sin(np.arange(5000))])[None].astype(np.float32)
    drawn = (waveform(samples) != 255).any(-1).sum(0)
    assert drawn[:120].max() <= 2
    assert drawn[140:].min() > 90
    assert waveform(samples[:, :3]).shape == waveform(samples).shape
