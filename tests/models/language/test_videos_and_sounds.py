"""Prompts with videos and sounds, in one batch with others: log-probs are those of the class's own forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from burnish.language.logprobs import response_logprobs
from burnish.language.model import Audio, Shown, Video
from burnish.types.completion import Encoded
from burnish.utils.errors import UserError
from tests.support.language_samples import responses
from tests.support.sounds import tone
from tests.support.tiny_language import chat, picture
from tests.support.universal import TINY, own_logprobs, universal_model

MOVING = ["qwen3_5", "internvl", "gemma4", "glm46v", "llava_onevision", "smolvlm", "minicpmv4_6"]
HEARING = ["qwen3_omni_moe_thinker", "qwen2_5_omni_thinker", "qwen2_audio", "glmasr", "phi4_multimodal"]
OFTEN = ("qwen3_5", "qwen3_omni_moe_thinker")
CASES = [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.thorough]) for name in (*MOVING, *HEARING)]


def film(seed: int, frames: int) -> Video:
    draw = np.random.default_rng(seed)
    return Video(draw.integers(0, 256, (frames, 24, 36, 3), dtype=np.uint8), 2.0)


def heard(model: Any, *pitches: float) -> Encoded:
    """A question about sounds of unequal lengths."""
    parts = [*({"type": "audio"} for _ in pitches), {"type": "text", "text": "How high?"}]
    sounds = [Audio(tone(1.1 + pitch / 1000, pitch=pitch), model.audio_rate) for pitch in pitches]
    return model.encode([{"role": "user", "content": parts}], Shown(audios=sounds))  # type: ignore[no-any-return]


def prompts_of(name: str) -> Encoded:
    model, reads = universal_model(name), TINY[name].reads
    asked = [model.encode(*chat("How are you today?")[:2])]
    if "image" in reads:
        asked.append(model.encode(*chat("What is ", picture(0, 30, 20), "?")))
    if "video" in reads:
        asked += [model.encode(*chat("See ", film(seed, count), "!")) for seed, count in ((1, 4), (2, 7))]
    if "audio" in reads:
        # GLM-ASR's processor takes one sound of a prompt
        asked += [heard(model, 300.0), heard(model, *([900.0] if name == "glmasr" else [900.0, 500.0]))]
    return Encoded.cat(asked)


@pytest.mark.parametrize("name", CASES)
def test_log_probs_are_those_of_the_class(name):
    model, prompts = universal_model(name), prompts_of(name)
    assert sum(features.size > 0 for features in prompts.features) >= 2
    index = [*range(len(prompts)), len(prompts) - 1]
    completion = responses(model, prompts, index, [3 + row % 4 for row in range(len(index))])
    wanted = own_logprobs(model, completion, 1.0)
    with torch.no_grad():
        found = response_logprobs(model, model.network, completion, temperature=1.0, layout="auto").logprob
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_chosen_frames_are_all_shown():
    model = universal_model("qwen3_5")  # whose processor takes two a second, and two make a patch
    free, chosen = (
        model.encode(*chat("See ", replace(film(1, 8), fps=8.0, chosen=given), "!")) for given in (False, True)
    )
    assert [int(one.features[0].tensors["video_grid_thw"][0, 0]) for one in (free, chosen)] == [1, 4]


def test_what_a_model_does_not_hear_is_refused():
    model = universal_model("gemma3")
    assert model.audio_rate is None
    with pytest.raises(UserError, match="can't hear, but a prompt has sounds; remove them"):
        model.encode([{"role": "user", "content": [{"type": "audio"}]}], Shown(audios=[Audio(tone(), 16000)]))


def test_short_sounds_are_heard_alike_beside_longer_ones():
    """Qwen3-Omni's convolutions see the longest sound of a forward, up to a second, behind a shorter one."""
    model = universal_model("qwen3_omni_moe_thinker")
    assert model.least_audio == 1.0
    assert universal_model("qwen2_audio").least_audio == 0
    chat = [{"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "How high?"}]}]
    sounds = [Audio(tone(seconds, pitch=500), model.audio_rate) for seconds in (0.15, 0.6, 0.95, 2.2)]
    prompts = Encoded.cat([model.encode(chat, Shown(audios=[sound])) for sound in sounds])
    assert len({*prompts.lengths[:3]}) == 1
    completion = responses(model, prompts, range(4), [4] * 4)
    wanted = own_logprobs(model, completion, 1.0)
    for layout in ("padded", "packed", "auto"):
        with torch.no_grad():
            found = response_logprobs(model, model.network, completion, temperature=1.0, layout=layout).logprob
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
