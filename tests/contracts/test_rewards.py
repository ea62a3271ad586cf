"""Every reward keeps what plug-ins are asked for: finite or missing, the same when asked again and in any batch."""

import json
import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from burnish.registry import lookup, names, options
from burnish.rewards.base import Reward, Score
from burnish.rewards.calls import call_reward
from burnish.rewards.scoring import Scorer, ScoringOptions
from burnish.rewards.text.base import Response
from burnish.testing import check_reward
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.samples import Clip, Kind, Sound
from burnish.utils.errors import UserError
from tests.support.processes import holds_nothing_up
from tests.support.scorers import SCORERS, tiny_reward
from tests.support.tiny_run import burnish

ELSEWHERE = {"remote", "judge_endpoint", "environment", "latent_norm"}  # read more than samples, or ask servers
IMAGES = [np.random.default_rng(seed).integers(0, 256, (48, 64, 3), dtype=np.uint8) for seed in range(3)]
CLIPS = [Clip(frames=np.stack([image, image[::-1], image]), fps=8.0) for image in IMAGES]
PROMPTS = [
    Prompt(text=text, answer="cat", images=(Media.array(IMAGES[0]),))
    for text in ("a red cat to the left", "two dogs going right", "a bench that goes up")
]
SOUNDS = [Sound(samples=np.random.default_rng(i).uniform(-1, 1, (2, 900)).astype("f4"), rate=3200) for i in range(3)]
OTHERS = {"motion": CLIPS, "videoalign": CLIPS, "clap": SOUNDS}
WITHIN = 1e-4  # kernels of networks round by the size of a batch
ANSWERS = ("<think>2 + 2 is 4</think><answer>4</answer>", "I say: B", "0.5 and 0.5 and 0.5", "")
BOXES = [Response('<answer>[{"bbox_2d": [0, 0, 10, 10]}]</answer>'), Response("[0, 0, 10, 20]"), Response("nowhere")]
GIVEN: dict[str, dict[str, Any]] = {"function": {"path": "{files}/rewards.py:brightness"}}
OF_RESPONSES: dict[str, dict[str, Any]] = {"function": {"path": "{files}/rewards.py:odd"}, "judge": {}}


def made(kind: str, name: str, files: Path, table: dict[str, dict[str, Any]]) -> Any:
    if name in {one.name for one in SCORERS}:
        return tiny_reward(name)
    given = table.get(name, {})
    if name in ("judge", "reward_model"):
        if not (files / "qwen2_5_vl").exists():
            burnish("tiny", "qwen2_5_vl", files / "qwen2_5_vl")
        given = {"path": str(files / "qwen2_5_vl")}
    options = {key: value.format(files=files) if isinstance(value, str) else value for key, value in given.items()}
    return lookup(kind, name)(**options)


@pytest.mark.parametrize("name", sorted(set(names("flow reward")) - ELSEWHERE - {"reward_model"}))
def test_of_images(name: str, files: Path) -> None:
    reward = made("flow reward", name, files, GIVEN)
    within = WITHIN if reward.has_weights else 0.0
    check_reward(reward, OTHERS.get(name, IMAGES), PROMPTS, rel=within)


@pytest.mark.parametrize("name", sorted(set(names("language reward")) - ELSEWHERE - {"reward_model"}))
def test_of_responses(name: str, files: Path) -> None:
    reward = made("language reward", name, files, OF_RESPONSES)
    answer = "[0, 0, 10, 10]" if name == "iou" else "4"
    responses = BOXES if name == "iou" else [Response(text) for text in ANSWERS]
    prompts = [Prompt(text="What?", answer=answer, images=(Media.array(IMAGES[0]),)) for _ in responses]
    check_reward(reward, responses, prompts, rel=WITHIN if reward.has_weights else 0.0)


MARKS, READERS = (json.loads(Path(__file__).with_name("marks.json").read_text())[name] for name in ("texts", "rules"))


@pytest.mark.parametrize("name", READERS)
def test_a_mark_that_a_response_repeats_holds_nothing_up(name: str) -> None:
    """Read in one pass, 10,000 of them take a fraction of a second; read anew from each, minutes."""
    reward, prompts = lookup("language reward", name)(**READERS[name]), [Prompt(text="?", answer="[0, 0, 1, 1]")]
    holds_nothing_up(lambda mark: reward.score([Response(f"<answer>{mark * 10_000}")], prompts), MARKS)


class Broken(Reward):
    """Says what it was told to."""

    why: str = ""

    def score(self, images, prompts):
        if self.why == "draws":
            return [Score(random.random()) for _ in images]
        if self.why == "counts":
            return [Score(float(len(images))) for _ in images]
        if self.why == "forgets":
            return [Score(0.0)]
        if self.why == "silent":
            return [Score(None) for _ in images]
        if self.why == "infinite":
            return [Score(float("inf")) for _ in images]
        images[0][:] = 0
        return [Score(0.0) for _ in images]


@pytest.mark.parametrize("why", ["draws", "counts", "forgets", "silent", "infinite", "writes"])
def test_a_broken_one_is_found_out(why: str) -> None:
    reward = Broken()
    reward.why = why
    with pytest.raises((AssertionError, ValueError)):
        check_reward(reward, [image.copy() for image in IMAGES], PROMPTS)
    if why in ("forgets", "draws"):  # in a run
        reward.numbers = ("size",)
        said = {"forgets": "returned 1 scores for 3 images", "draws": "declares the number size"}[why]
        assert said in call_reward(reward, IMAGES, PROMPTS).note


def test_one_that_other_processes_can_not_have_is_refused_before_they_start() -> None:
    reward = Broken()
    reward.why = lambda: 0  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"reward mine can't be sent to a scoring process: .*scoring.processes=0"):
        Scorer({"mine": reward}, ScoringOptions(processes=1)).start()


SHADES = np.arange(1, 101, 10, dtype=np.uint8)  # of ten frames
SOUND = Sound(samples=np.full((1, 4), 0.5, np.float32), rate=4)


def clip(**changes: Any) -> Clip:
    frames = np.broadcast_to(SHADES[:, None, None, None], (10, 4, 4, 3)).copy()
    return Clip(**{"frames": frames, "fps": 5.0} | changes)


@options
class Level(Reward):
    def score(self, images, prompts):
        return [Score(float(image.mean()) if image.any() else None, f"{image.mean():g}") for image in images]

    def differentiable(self, images, prompts):
        return images.mean((1, 2, 3))


@options
class Loudness(Reward):
    reads: ClassVar[tuple[Kind, ...]] = ("sound",)

    def score(self, images, prompts):
        return [Score(float(sound.samples.mean())) for sound in images]


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({}, 1 + np.mean([0, 10, 30, 40, 50, 60, 80, 90])),  # eight of ten
        ({"every": 4, "reduce": "min"}, 1),
        ({"count": 2, "reduce": "max"}, 91),
        ({"reduce": "first"}, 1),
        ({"reduce": "last"}, 91),
        ({"every": 3, "reduce": "median"}, 46),
    ],
    ids=str,
)
def test_a_reward_on_images_scores_a_clip_by_its_frames(given: dict[str, Any], value: float) -> None:
    one = Level(frames=given)
    assert one([clip()], PROMPTS[:1])[0].value == pytest.approx(value)
    images = torch.tensor(clip().frames).permute(0, 3, 1, 2)[None].float()
    assert one.with_gradients(images, PROMPTS[:1]).tolist() == pytest.approx([value])


def test_what_a_reward_does_not_read_is_told_and_never_scored() -> None:
    assert [one.value for one in Loudness()([clip(sound=SOUND), SOUND], PROMPTS[:2])] == [0.5, 0.5]
    dark = clip(frames=np.zeros((2, 4, 4, 3), np.uint8))
    assert Level()([clip(), dark], PROMPTS[:2])[1] == Score(None, "0"), "of a frame that has none"
    for one, sample, why in (
        (Level(), SOUND, "scores images, but the model draws sounds"),
        (Loudness(), clip(), "the clip has none"),
        (Level(), clip(finite=False), "the clip has non-finite values"),
        (Level(), Response("2"), "this is a text"),
    ):
        assert why in one.unable(sample)
