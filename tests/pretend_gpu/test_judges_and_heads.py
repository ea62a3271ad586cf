"""Judges that are loaded, and rewards on Qwen2-VL with heads, on a pretended GPU: the numbers of the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.registry import lookup
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.samples import Clip
from tests.support.pretend_gpu import PretendGpu
from tests.support.scorers import tiny_reward
from tests.support.tiny_language import tiny_language

IMAGES = [np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8) for seed in range(2)]
PROMPTS = [Prompt(text=text, images=(Media.array(IMAGES[0]),)) for text in ("a cat", "two small dogs")]
LETTERS = {"Y": 1.0, "N": 0.0}
JUDGES = {
    "one token": {"form": "answers", "answers": LETTERS, "least": 0.0}, "whole answers": {"form": "vqascore"},
    "written": {"form": "answers", "pattern": "(.)", "answers": LETTERS, "max_new_tokens": 3},
}  # fmt: skip


def check(make: Callable[..., Any], samples: list) -> None:
    """A reward says the same on the CPU and on the pretended GPU, where its weights are put away in between."""
    said = []
    for more in ({}, {"device": "cuda", "put_away": True}):
        with PretendGpu():
            said.append(make(dtype="float32", **more).score(samples, PROMPTS))
    for cpu, gpu in zip(*said, strict=True):
        assert gpu.note == cpu.note
        assert gpu.value == (None if cpu.value is None else pytest.approx(cpu.value, rel=1e-4, abs=1e-4))


@pytest.mark.parametrize("kind", JUDGES)
def test_a_judge(tmp_path: Path, kind: str) -> None:
    tiny_language(tmp_path, "qwen2_5_vl")
    check(lambda **more: lookup("flow reward", "judge")(path=str(tmp_path), **JUDGES[kind], **more), IMAGES)


@pytest.mark.parametrize("name", ["hpsv3", "videoalign"])
def test_a_head(name: str) -> None:
    clips = [Clip(frames=np.stack([one] * 4), fps=4.0) for one in IMAGES]
    check(lambda **more: tiny_reward(name, **more), IMAGES if name == "hpsv3" else clips)
