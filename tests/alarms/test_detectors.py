"""Every alarm: raised when its metric leaves, not before, over when it comes back."""

import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.special import stdtrit

from burnish.alarms.detectors import LIMITS, Drift, RewardDominance, Series, Threshold
from burnish.alarms.record import Alarm
from burnish.options import AlarmOptions
from tests.support.optional import seldom

RATE = 0.01
KINDS = {
    "normal": lambda draw, shape: draw.normal(size=(*shape[:2], 1)) * 0.8 + draw.normal(size=shape) * 0.6,
    "alike": lambda draw, shape: np.repeat(draw.normal(size=(*shape[:2], 1)), shape[2], 2),
    "skewed": lambda draw, shape: np.exp(draw.normal(size=(*shape[:2], 1)) + draw.normal(size=shape)),
    "rare": lambda draw, shape: (draw.random(shape) < 0.01).astype(float),
    "shares": lambda draw, shape: (draw.random(shape) < draw.random((*shape[:2], 1))).astype(float),
}


def false_alarms(kind: str, prompts: int, samples: int, runs: int, updates: int, far: float = 1e-6) -> int:
    """Runs of a statistic that doesn't change in which a move is found at any time."""
    draw, found = np.random.default_rng(prompts), 0
    for _ in range(runs):
        values = KINDS[kind](draw, (updates, prompts, samples))
        groups = values.mean(2)
        rows = zip(groups.mean(1).tolist(), values.reshape(updates, -1).std(1).tolist(),
                   (groups.std(1, ddof=1) / math.sqrt(prompts)).tolist(), strict=True)  # fmt: skip
        one = Series(prompts, RATE)
        for update, row in enumerate(rows, start=1):
            one.add(update, *row)
            if one.move(far) is not None:
                found += 1
                break
    return found


@pytest.mark.parametrize(("prompts", "samples", "runs", "updates"), [
    (8, 6, 200, 60),
    *seldom((2, 4, 1000, 200), (32, 4, 1000, 200)),
])  # fmt: skip
def test_honest_series_raise_no_more_false_alarms_than_is_said(prompts, samples, runs, updates):
    for kind in KINDS:
        assert false_alarms(kind, prompts, samples, runs, updates) <= max(6, 1.7 * RATE * runs)  # 2 of 200 at most


@pytest.mark.parametrize(("prompts", "error", "first", "last", "freedom"),
                         [(1, 0.01, 8, 4, 11), (9, 0.01, 2, 2, 96), (1, None, 8, 4, 11)])  # fmt: skip
def test_a_move_is_one_that_chance_exceeds_too_seldom(prompts, error, first, last, freedom):
    """Without standard errors, what chance is is said by the second differences, most of which are 4 here."""
    wobble, way = np.array([1, -1, 1, -1, 0, 0, 0, 0] + [1, -1] * 2), np.repeat([0, 0.4, 0.6, 1], [6, 1, 1, 4])
    std = error or 4 / (0.6745 * math.sqrt(6))
    bound = float(-stdtrit(freedom, 0.001 / (12 * 13) / 2)) * std * math.sqrt(1 / first + 1 / last)
    for size in (0.95, 1.05):
        one = Series(prompts, 0.001)
        for update, (off, part) in enumerate(zip(wobble, way if prompts > 1 else way == 1, strict=True), start=1):
            one.add(update, size * bound * float(part) + (0 if error else off), 0.1 if update <= first else 9, error)
        move = one.move(9 * size * bound)  # in standard deviations, which are 0.1
        assert (move is not None) == (size > 1)
    assert (move.before, move.now, move.spread) == pytest.approx((0, size * bound, 0.1))
    assert move.since == (9 if prompts == 1 else 8)


MOVES = yaml.safe_load(Path(__file__).with_name("moves.yaml").read_text())


@pytest.mark.parametrize(("means", "std", "error", "moved"), MOVES)
def test_a_move_has_a_least_size_and_number_of_updates(means, std, error, moved):
    one = Series(16, 0.001)
    for update, mean in enumerate(means, start=1):
        one.add(update, mean, std, error)
    assert (one.move(0.5) is not None) == moved
    assert not moved or one.move(0.5).spread > 0


OPTIONS = AlarmOptions()


def statistic(mean: float | None, correlation: float = 0.0, prefix: str = "critic/dark", **more: float) -> dict:
    found = {"mean": mean, "std": 0.1, "error": 0.01, "reward_correlation": correlation} | more
    return {f"{prefix}/{name}": value for name, value in found.items() if value is not None}


def raised(detector, rows) -> list[tuple[int, Alarm | None]]:
    found = []
    for update, row in enumerate(rows, start=1):
        detector.add(update, row)
        found.append((update, detector.alarm))
    return found


BEYOND = yaml.safe_load(Path(__file__).with_name("limits.yaml").read_text())


def test_a_drift_is_an_alarm_while_the_reward_pays_for_it_and_is_over_when_it_comes_back():
    """Over is within half of what was enough."""

    def drift(worse, **more):
        return Drift("critic/dark", prompts=16, samples=8, worse=worse, **more)

    means = [0.2, None, 0.2] + [0.5] * 3 + [0.31, 0.08, 0.31, 0.29, 0.29] + [0.2] * 8 + [0.5] * 2
    found = raised(drift("higher"), (statistic(mean, better=0.5, worse=0.25) for mean in means))
    assert [update for update, alarm in found if alarm] == [5, 6, 7, 8, 9, 10, 21]
    said = "dark rose from 0.200 to 0.500, 3.0 standard deviations of the first samples, since update 4; 0.500 where "
    said += "the reward is above its prompt's mean, 0.250 below"
    assert found[4][1] == Alarm("dark", "drift", 4, said, "critic/dark/mean", 0.2, 0.1)
    rising, falling = (0.2, 0.2, 0.6, 0.6), (0.6, 0.6, 0.2, 0.2)
    for series, way in ((rising, 1), (falling, -1)):
        for correlation, told in ((0.6, True), (0.0, False), (-0.6, False), (0.09, False), (None, True)):
            rows = [statistic(mean, correlation and way * correlation) for mean in series]
            assert (raised(drift(None), rows)[-1][1] is not None) == told
            assert (raised(drift(None, alike=True), rows)[-1][1] is not None) == told
        assert (raised(drift("higher"), [statistic(mean) for mean in series])[-1][1] is None) == (way < 0)
    few = [statistic(mean, 0.3) for mean in rising]
    assert [raised(drift(None, alike=alike), few)[-1][1] is not None for alike in (False, True)] == [True, False]
    means = [0.2] * 2 + [0.25] * 2 + [0.23] * 2 + [0.215] * 2  # half a standard deviation is enough if it is paid for
    found = raised(drift(None), [statistic(mean, 0.9) for mean in means])
    assert [update for update, alarm in found if alarm] == [4, 5, 6, 7]
    assert "; the reward pays for it (correlation +0.90 among" in found[3][1].text


@pytest.mark.parametrize(("moved", "by", "share", "told"), [
    ("b", 0.06, 0.95, True), ("b", -0.06, 0.95, False), ("c", -0.06, 0.95, True), ("c", 0.06, 0.95, False),
    ("a", -0.06, 0.95, False), ("b", 0.04, 0.95, False), ("b", 0.06, 0.89, False),
])  # fmt: skip
def test_a_reward_that_makes_all_the_differences_is_an_alarm_while_another_got_worse(moved, by, share, told):
    rows = []
    for steps in [0, 0, 1, 1, 0, 0]:
        rows.append({"critic/a/reward_share": share})
        for name in "abc":
            rows[-1] |= statistic(0.2 + by * steps * (name == moved), prefix=f"critic/{name}", error=0.001)
    found = raised(RewardDominance({"a": 1.0, "b": -1.0, "c": 2.0}, prompts=16), [rows[0], {}, *rows[1:]])
    assert [update for update, alarm in found if alarm] == ([5] if told else [])
    if told:
        alarm = found[4][1]
        assert (alarm.kind, alarm.since, alarm.metric, alarm.spread) == ("reward", 4, f"critic/{moved}/mean", 0.1)
        assert alarm.text.startswith(f"a makes 95 % of the reward's differences among samples of a prompt, and {moved}")


@pytest.mark.parametrize("name", LIMITS)
def test_a_level_is_named_after_three_updates_beyond_it(name):
    usual, beyond, *silent = BEYOND[name]
    rows = [usual] * 22 + [beyond] * 2 + [usual] + [beyond] * 3 + [*(silent or [{}]), usual]
    found = raised(Threshold(name, OPTIONS), rows)
    assert [update for update, alarm in found if alarm] == [28, 29]  # an update without the metric says nothing
    alarm = found[27][1]
    assert alarm is not None
    assert (alarm.name, alarm.since, alarm.before) == (name, 26, LIMITS[name].value(usual, LIMITS[name].metric))
    assert f"for 3 updates in a row, since update 26); in the first updates {LIMITS[name].metric} was" in alarm.text
    assert alarm.text.endswith(LIMITS[name].means)
