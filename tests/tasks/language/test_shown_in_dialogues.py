"""What environments show beside single pictures: videos, what no processor reads, and episodes that are async."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from burnish.environments.base import Environment, Observation
from burnish.language.logprobs import response_logprobs
from burnish.registry import options
from burnish.rewards.text.base import POLICY
from burnish.utils.errors import UserError
from tests.support.games import Roles, play, prompts
from tests.support.tiny_language import picture


class Films:
    """Shows something else to each prompt, after waiting for what all of its methods share."""

    def __init__(self, kind: str) -> None:
        self.kind, self.turn = kind, 0

    async def reset(self, prompt: Any, seed: int) -> Observation:
        self.lock, self.broken = asyncio.Lock(), prompt.text == "Two?"
        return Observation()

    async def step(self, response: str) -> Observation:
        async with self.lock:
            await asyncio.sleep(0)
        self.turn += 1
        grey = np.full((4, 28, 28, 3), 20 * self.turn, np.uint8)
        shown = {"video": grey, "strip": picture(0, 900, 2) if self.broken else picture(0)}[self.kind]
        return Observation([shown, "Go on."], reward=1.0, done=self.turn == 3)


@options
class ShowsFilms(Environment):
    kind: str = "video"

    def episode(self) -> Any:
        return Films(self.kind)


@pytest.mark.parametrize(
    ("family", "history"),
    [("qwen2_5_vl", "tokens"), ("qwen2_5_vl", "template"), ("internvl", "template"),
     pytest.param("qwen3_vl", "tokens", marks=pytest.mark.thorough)],
)  # fmt: skip
def test_a_video_is_seen_alike_by_sampler_and_trainer(family, history):
    completion, responses = play(ShowsFilms(history=history), prompts(family), family=family)
    model = Roles(family).model
    assert all(one.dialogue.rewards == (1.0, 1.0, 1.0) for one in responses)
    assert [words for who, words in responses[0].dialogue.said if who != POLICY] == ["[video]Go on."] * 3
    for layout in ("padded", "packed"):
        scores = response_logprobs(model, model.network, completion, temperature=0.9, layout=layout)
        torch.testing.assert_close(scores.logprob, completion.logprob, rtol=0, atol=1e-5)
    names = {name.rpartition("/")[2] for name in completion.features[0].tensors}
    assert names & {"videos", "pixel_values"}


def test_what_no_processor_reads_breaks_its_own_dialogue():
    _, responses = play(ShowsFilms(kind="strip"), prompts())
    assert [len(one.dialogue.responses) for one in responses] == [3, 3, 1, 1]
    assert [bool(one.dialogue.error) for one in responses] == [False, False, True, True]
    assert "the model's processor can't read what it shows: absolute aspect ratio" in responses[2].dialogue.error


@pytest.mark.parametrize("history", ["tokens", "template"])
def test_a_video_for_a_class_that_sees_pictures_alone_is_refused(history):
    with pytest.raises(UserError, match=r"sees no videos: its processor leaves them out|shows a video in a later turn"):
        play(ShowsFilms(history=history), prompts("gemma3"), family="gemma3")
