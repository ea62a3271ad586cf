"""Kept pictures: what a crash leaves of them, and what they say about chance."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from burnish.report.compared import differences, flat, other_rewards
from burnish.report.samples import Score, chance, read_samples
from burnish.report.validated import prompt_row
from tests.support.reports import Story, run_folder


def samples(rewards, per_prompt=2, exact=None):
    return {
        (i // per_prompt, i % per_prompt): Score("default", reward, {"ocr_exact": exact})
        for i, reward in enumerate(rewards)
    }


def test_everything_that_was_kept_is_read(tmp_path):
    folder = run_folder(tmp_path / "run", Story(updates=0))
    found = read_samples(folder.validation(0))
    assert sorted(found) == [(index, sample) for index in range(16) for sample in range(6)]
    assert all(sample.picture.exists() for sample in found.values())
    assert {sample.exact for sample in found.values()} == {True, False}


def test_a_torn_line_costs_only_itself(tmp_path):
    folder = run_folder(tmp_path / "run", Story(updates=0))
    file = folder.validation(0) / "samples.jsonl"
    whole = file.read_bytes()
    last = whole.splitlines()[-1]
    for cut in range(1, len(last)):
        file.write_bytes(whole[: -1 - cut])
        assert len(read_samples(folder.validation(0))) == 95
    assert read_samples(tmp_path / "nothing") == {}


def test_chance_is_two_standard_errors_of_the_change_per_prompt():
    before, after = samples([0.0] * 10), samples([0.1, 0.3, 0.0, 0.0, 0.4, 0.4, 0.1, 0.1, 0.2, 0.4])
    means = [0.2, 0.0, 0.4, 0.1, 0.3]
    assert chance(before, after, "reward") == pytest.approx(2 * np.std(means, ddof=1) / math.sqrt(5))


def test_equal_changes_leave_nothing_to_chance():
    noise = np.random.RandomState(0).rand(12)
    assert chance(samples(noise), samples(noise + 0.25), "reward") == pytest.approx(0.0, abs=1e-12)


def test_missing_rewards_and_few_prompts():
    assert chance(samples([0.0] * 6), samples([1.0, 0.0] * 3), "reward") == math.inf  # three prompts
    assert chance({}, {}, "reward") == 0.0
    gaps = samples([None, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert chance(samples([0.0] * 10), gaps, "reward") > 0
    assert chance(samples([0.0] * 10), samples([0.0] * 10), "ocr_exact") == 0.0


def test_unreadable_samples_are_no_samples(tmp_path):
    (tmp_path / "samples.jsonl").write_text(json.dumps({"prompt": "no number"}) + "\n[1]\n3\n")
    assert read_samples(tmp_path) == {}


@pytest.mark.parametrize(
    ("rewards", "change", "never"),
    [
        ([[1.0, 2 / 3], [float(np.float32(1.0)), float(np.float32(2 / 3))]], 0.0, True),
        ([[0.5, 0.5], [0.5, 0.75]], 0.125, False),
        ([[0.5, 0.5], [0.5, 0.25]], -0.125, True),
        ([[1.0, 1.0], [1.0, 1.0]], 0.0, False),  # there was nothing to learn
    ],
)
def test_rounding_is_no_change_of_a_prompt(rewards, change, never):
    row = prompt_row(0, dict(enumerate(rewards)), room=1.0)
    assert (row["change"], row["never"]) == (change, never)


def test_what_is_unset_in_a_reward_of_one_run_is_no_difference():
    one = {"seed": 0, "optimizer": {"clip": None}}
    other = {"seed": 0, "optimizer": {"clip": 1.0}, "rewards": {"ocr": {"weight": 1.0, "cap": None, "by": {}}}}
    found = differences({"a": flat(one), "b": flat(other)})
    assert {row["option"]: row["values"] for row in found} == {
        "optimizer.clip": ["null", "1.0"],
        "rewards.ocr.weight": [None, "1.0"],
    }


def test_runs_of_different_rewards_are_told_apart():
    one = {"rewards": {"ocr": {"weight": 1.0}, "brightness": {"weight": 0.0}}}
    other = {"rewards": {"exact": {"weight": 0.9}, "format": {"weight": 0.1}}}
    told = other_rewards({"a": flat(one), "b": flat(other)})
    assert told == ("These runs were trained on different rewards, which can't be compared: a: ocr; b: exact + format.")
    assert other_rewards({"a": flat(one), "b": flat({"rewards": {"ocr": {"weight": 0.5}}})}) == ""
