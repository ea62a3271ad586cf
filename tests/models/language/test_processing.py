"""Pixels of videos: as those of images where they must be, frames chosen as transformers chooses them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from burnish.language.model import Video
from burnish.models.language.own.collation import Conversation, Trial, learn
from burnish.models.language.processing import PatchVideos
from burnish.models.language.tiles import TileVideos, in_words
from burnish.types.completion import Features
from tests.support.language_samples import model_of
from tests.support.tiny_language import chat, film, picture


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("size", [(16, 16), (24, 16), (50, 34)])
def test_a_still_video_has_the_patches_of_the_image(family, size):
    model, still = model_of(family), picture(5, *size)
    image = model.encode(*chat(still)).features[0]
    frames = np.stack([np.asarray(still)] * 3)
    video = model.encode(*chat(Video(frames))).features[0]
    assert video.get("video_grid").tolist() == [[2, *image.get("image_grid")[0, 1:].tolist()]]
    torch.testing.assert_close(video.get("videos"), image.get("images").repeat(2, 1), rtol=1e-6, atol=1e-6)


def test_patches_lie_as_transformers_lays_them():
    model = model_of("qwen2_5_vl")
    video = film(3, frames=4)
    values = torch.from_numpy(video.frames).permute(0, 3, 1, 2).float() / 255 * 2 - 1
    grid = values.view(1, 2, 2, 3, 2, 2, 4, 2, 2, 4).permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9)
    patches, size, chosen = model._videos.process(video)
    assert size.tolist() == [2, 4, 4]
    assert chosen == [0, 1, 2, 3]
    torch.testing.assert_close(patches, grid.reshape(32, -1), rtol=1e-6, atol=1e-6)


CONFIG = {
    "patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 1024}, "image_mean": [0.5],
    "image_std": [0.5], "do_sample_frames": True, "fps": 2, "min_frames": 4, "max_frames": 8,
}  # fmt: skip


@pytest.mark.parametrize(("frames", "fps", "count"), [(30, 10.0, 6), (10, 10.0, 4), (300, 10.0, 8), (3, 10.0, 3)])
def test_frames_are_looked_at_evenly(frames, fps, count):
    videos = PatchVideos.read(CONFIG, per_video=False, sampled=False)
    chosen = videos.sample(Video(np.zeros((frames, 4, 4, 3), np.uint8), fps))
    assert len(chosen) == count
    assert chosen[0] == 0
    assert chosen[-1] == frames - 1


def test_the_limit_on_pixels_may_be_for_the_whole_video():
    video = Video(np.zeros((8, 32, 32, 3), np.uint8))
    config = CONFIG | {"do_sample_frames": False}
    each, all_ = (PatchVideos.read(config, per_video=whole, sampled=False).process(video)[1] for whole in (False, True))
    assert each.tolist() == [4, 8, 8]
    assert all_.prod() * 16 * 2 <= 1024


def test_tiles_skip_the_ends_of_long_videos():
    config = {
        "max_image_size": {"longest_edge": 16}, "image_mean": [0.5], "image_std": [0.5], "do_sample_frames": True,
        "video_sampling": {"fps": 1, "max_frames": 4, "video_size": {"longest_edge": 32}},
    }  # fmt: skip
    videos = TileVideos.read(config)
    short, long = (Video(np.zeros((count, 8, 8, 3), np.uint8), 2.0) for count in (6, 40))
    assert videos.sample(short) == [0, 2, 5]
    assert videos.sample(long) == [2, 14, 26, 38]
    assert videos.process(short)[0].shape == (3, 3, 16, 16)


WORDS = {
    5: "five",
    12: "twelve",
    20: "twenty",
    64: "sixty-four",
    100: "one hundred",
    321: "three hundred and twenty-one",
}


@pytest.mark.parametrize(("number", "words"), WORDS.items())
def test_numbers_in_words(number, words):
    assert in_words(number) == words


def test_what_has_an_entry_for_each_token_goes_on_with_the_last_one():
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
