import math
from pathlib import Path

import numpy as np
import pytest

from burnish.registry import lookup
from burnish.rewards.base import Reward, Verdict
from burnish.rewards.judging import judge
from burnish.types.prompt import Prompt

MODULE = "tests.support.reward_functions"
GREY = np.full((4, 4, 3), 51, dtype=np.uint8)


def function(name: str, **arguments):
    return lookup("flow reward", "function")(path=f"{MODULE}:{name}", arguments=arguments)


def verdicts(reward: Reward, *texts: str) -> list[Verdict]:
    return judge(reward, [GREY] * len(texts), [Prompt(text=text) for text in texts])


def test_it_gets_pictures_prompts_and_arguments():
    (plain,) = verdicts(function("brightness"), "a")
    (scaled,) = verdicts(function("brightness", scale=10), "a")
    assert (plain.value, scaled.value) == pytest.approx((0.2, 2.0))


def test_a_file_may_hold_it(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Weights:\n    one: float = 0.5\n"
        "def score(images, prompts): return [Weights().one] * len(images)\n"
    )
    reward = lookup("flow reward", "function")(path=f"{file}:score")
    reward.check([])
    assert [verdict.value for verdict in verdicts(reward, "a", "b")] == [0.5, 0.5]


def test_a_sample_that_it_raises_for_takes_no_other_with_it():
    good, bad, last = verdicts(function("fails_on_x"), "a", "x", "b")
    assert (good.value, last.value) == (1.0, 1.0)
    assert bad.value is None
    assert "ZeroDivisionError: x is not for me" in bad.note


def test_what_is_no_finite_number_is_missing():
    said = verdicts(function("odd_values"), "nan", "inf", "1e300", "dict", "None")
    assert [verdict.value for verdict in said] == [None] * 5
    for verdict, why in zip(said, ("nan", "inf", "1e+300", "{}", "no value"), strict=True):
        assert why in verdict.note


def test_a_wrong_number_of_values_is_missing_and_says_so():
    said = verdicts(function("one_too_few"), "a", "b", "c")
    assert [verdict.value for verdict in said] == [None] * 3
    assert all("2 values for 3 pictures" in verdict.note for verdict in said)


def test_a_function_that_draws_on_pictures_changes_none():
    before = GREY.copy()
    assert verdicts(function("paints_over"), "a")[0].value == 0
    np.testing.assert_array_equal(GREY, before)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("brightness", "package.module:function"),
        (f"{MODULE}:", "package.module:function"),
        (f"{MODULE}:nothing", "nothing has no such name"),
        (f"{MODULE}:brightnes", "did you mean brightness?"),
        (f"{MODULE}:not_a_function", "not_a_function is not a function"),
        ("no.such.module:score", "No module named 'no'"),
        ("/no/such/file.py:score", "no file /no/such/file.py"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_before_the_run(path, why):
    with pytest.raises(ValueError, match="path") as refused:
        lookup("flow reward", "function")(path=path).check([])
    assert why in str(refused.value)
    assert repr(path) in str(refused.value)


def test_a_file_that_fails_to_import_is_refused(tmp_path: Path):
    (tmp_path / "broken.py").write_text("undefined_name\n")
    with pytest.raises(ValueError, match="NameError: name 'undefined_name'"):
        lookup("flow reward", "function")(path=f"{tmp_path / 'broken.py'}:score").check([])


class OfflineSamples(Reward):
    """Says what the test wants it to say."""

    extras = ("one",)

    def __init__(self, *said: Verdict) -> None:
        self.said = list(said)

    def score(self, images, prompts):
        return self.said


def test_any_reward_is_held_to_its_promises():
    assert verdicts(OfflineSamples(), *[]) == []
    good = Verdict(1.0, (0.0,), "read")
    assert verdicts(OfflineSamples(good), "a") == [good]
    for wrong, why in (
        (Verdict(math.nan, (0.0,)), "not a finite number"),
        (Verdict(1.0), "0 extras, but declares 1"),
        (Verdict(None, (), "too dark"), "too dark"),
        (Verdict(None), "gave no value"),
    ):
        (said,) = verdicts(OfflineSamples(wrong), "a")
        assert said.value is None
        assert why in said.note
    assert all("returned 2 verdicts for 1" in said.note for said in verdicts(OfflineSamples(good, good), "a", "b", "c"))
