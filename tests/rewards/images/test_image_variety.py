"""Variety of the pictures of a prompt, against the likeness that is tested against transformers."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from burnish.alarms.levels import Beyond
from burnish.options.alarms import AlarmOptions
from burnish.rewards.given import Given
from burnish.rewards.judging import judge
from burnish.types.clips import Clip
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from tests.support.scorers import checkpoint, pictures, tiny_reward, values

ONE = [Prompt(text="a cat")] * 4


def given(samples, prompts, group=()):
    found = judge(tiny_reward("image_variety"), samples, prompts, Given(group=group))
    return [one.value for one in found]


@pytest.mark.parametrize("name", ["image_similarity", "clip"])
def test_it_is_one_minus_the_mean_likeness_to_the_others(name):
    folder = str(checkpoint(name))
    cosine = [
        values(
            tiny_reward("image_similarity", path=folder), pictures(), [Prompt(text="", images=(Media.array(one),))] * 4
        )
        for one in pictures()
    ]
    found = values(tiny_reward("image_variety", path=folder, batch_size=3), asked=ONE)
    for row in range(4):
        others = [cosine[row][column].item() for column in range(4) if column != row]
        assert found[row].item() == pytest.approx(1 - sum(others) / 3, abs=1e-5)


def test_samples_of_other_prompts_do_not_count():
    some = pictures()
    noise, ramp = given([some[0]] * 2 + [some[1]] * 2, ONE, group=[0, 1, 0, 1])[:2]
    assert noise == ramp > 0.01
    assert given([some[0]] * 2 + [some[1]] * 2, ONE, group=[0, 0, 1, 1]) == pytest.approx([0.0] * 4, abs=1e-5)
    assert given(some, ONE, group=[0, 0, 1, 2])[2:] == [None, None], "nothing to differ from"


def test_clips_are_compared_frame_by_frame():
    first, second = (np.stack([one] * 3) for one in (pictures()[1], 255 - pictures()[1]))
    turned = np.stack([first[0], first[1], second[2]])
    alike, apart = (given([Clip(frames=first, fps=8), Clip(frames=one, fps=8)], ONE[:2])[0] for one in (first, turned))
    whole = given([pictures()[1], 255 - pictures()[1]], ONE[:2])[0]
    assert alike == pytest.approx(0, abs=1e-5)
    assert apart == pytest.approx(whole / 3, abs=1e-5)


def test_what_is_never_read_is_refused():
    with pytest.raises(ValidationError, match="frames is never read, because image_variety compares clips at 8 frames"):
        tiny_reward("image_variety", frames={"count": 2})


def test_a_collapse_is_named_by_the_reward_that_measures_it():
    watching = Beyond("variety_collapse", AlarmOptions(limits={"variety_collapse": 0.3}), of="dino")
    for update, mean in enumerate((0.4, 0.4, 0.2, 0.1, 0.1, 0.1), start=1):
        assert watching.alarm is None
        watching.add(update, {"critic/dino/mean": mean, "critic/diversity": 0.3})
    assert watching.alarm is not None
    assert watching.alarm.name == "dino_collapse"
    assert watching.alarm.metric == "critic/dino/mean"
