"""What alarms look at is measured as it says."""

import math

import pytest
import torch

from burnish.measured import error_and_std, measured, of_responses, shares, without_signal
from burnish.types.response_stats import ResponseStats, reflections
from burnish.types.rollout import Scores

GROUP = torch.tensor([0, 0, 1, 1, 2, 2])


def scores(components: dict[str, list[float]], weights: tuple[float, ...], reward: list[float] | None = None) -> Scores:
    columns = torch.tensor(list(components.values())).T
    total = (columns.nan_to_num() * torch.tensor(weights)).sum(1) if reward is None else torch.tensor(reward)
    return Scores(
        reward=total, missing=total.isnan(), components=columns, names=tuple(components), weights=weights,
        notes=[""] * len(columns),
    )  # fmt: skip


def test_the_error_of_a_mean_is_that_over_prompts():
    value = torch.tensor([1.0, 3.0, 4.0, 4.0, 0.0, math.nan])
    found = error_and_std("x", value, GROUP, std=True)
    assert found["x/error"] == pytest.approx(2.0 / math.sqrt(3))  # of the means 2, 4 and 0
    assert found["x/std"] == pytest.approx(float(value[:5].std(correction=0)))
    assert error_and_std("x", value[:2], GROUP[:2], std=False) == {}  # one prompt has none
    assert error_and_std("x", value[5:], GROUP[5:], std=True) == {}


def test_groups_without_signal_are_solved_or_dead():
    some = scores({"a": [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]}, (1.0,))
    found = without_signal(some, GROUP)
    assert found["critic/rewards/solved_ratio"] == pytest.approx(1 / 3)
    assert found["critic/rewards/dead_ratio"] == pytest.approx(1 / 3)
    assert without_signal(some, torch.arange(6)) == {}  # nothing to compare


def test_shares_add_up_and_say_who_makes_the_differences():
    some = scores({"a": [1.0, 0.0, 1.0, 0.0, 1.0, 0.0], "b": [0.1, 0.0, 0.0, 0.1, 0.5, 0.5]}, (1.0, 1.0))
    found = shares(some, GROUP)
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["critic/a/reward_share"] > 0.9
    product = scores({"a": [1.0, 0.0] * 3, "b": [0.5, 0.1] * 3}, (1.0, 1.0), reward=[0.5, 0.0] * 3)
    assert shares(product, GROUP) == {}


def test_statistics_of_responses_go_with_the_reward():
    some = scores({"a": [1.0, 0.0] * 3}, (1.0,))
    stats = [ResponseStats(length, length == 9, 0.0, math.nan, "words", length - 4) for length in (9, 5, 9, 4, 8, 6)]
    found = of_responses(stats, some, GROUP)
    assert found["response/length/mean"] == pytest.approx(41 / 6)
    assert found["response/length/reward_correlation"] > 0.9
    assert (found["response/length/better"], found["response/length/worse"]) == (
        pytest.approx(26 / 3),
        pytest.approx(5.0),
    )
    assert found["response/truncated/mean"] == pytest.approx(1 / 3)
    assert "response/repeated/reward_correlation" not in found  # it is the same for all
    assert "response/surprisal/mean" not in found
    assert found["response/reflections/mean"] == pytest.approx(17 / 6)
    assert found["response/reflections/reward_correlation"] > 0.9


def test_phrases_of_reflection_are_counted_as_words():
    assert reflections("Wait, let me\n think. Actually 7 is WRONG: a mistake. Let me reconsider; rethink.") == 7
    assert reflections("The waiter awaits corrections, wrongly. Let us think.") == 0


def test_a_batch_that_was_not_sampled_has_nothing_to_watch():
    assert measured(None) == {}  # type: ignore[arg-type]
