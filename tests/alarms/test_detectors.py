"""Every alarm: raised when its metric leaves, not before, over when it comes back."""

import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.special import stdtrit

from burnish.alarms.detectors import LIMITS, Drift, Series, Threshold
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
def test_honest_series_raise_no_more_false_alarms_than_is_said_and_a_move_is_found(prompts, samples, runs, updates):
    for kind in KINDS:
        assert false_alarms(kind, prompts, samples, runs, updates) <= max(6, 1.7 * RATE * runs)  # 2 of 200 at most
    draw = np.random.default_rng(0)
    for _ in range(50):
        values = draw.normal(size=(30, 32, 8)) + 0.6 * (np.arange(30) >= 10)[:, None, None]
        one = Series(32, RATE)
        for update, some in enumerate(values, start=1):
            one.add(update, float(some.mean()), float(some.std()), float(some.mean(1).std(ddof=1)) / math.sqrt(32))
        assert one.move(0.3) is not None


def test_a_move_is_one_that_chance_exceeds_too_seldom():
    bound = -stdtrit(11, 0.001 / (12 * 13) / 2) * 0.01 * math.sqrt(1 / 8 + 1 / 4)  # of 8 first and 4 last updates
    for size, moved in ((0.95, False), (1.05, True)):
        one = Series(1, 0.001)
        for update in range(1, 13):
            one.add(update, size * float(bound) * (update > 8), 0.1, 0.01)
        assert (one.move(1e-6) is not None) == moved


OPTIONS = AlarmOptions()


def statistic(mean: float | None, correlation: float = 0.0, prefix: str = "critic/dark", **more: float) -> dict:
    found = {"mean": mean, "std": 0.1, "error": 0.01, "reward_correlation": correlation} | more
    return {f"{prefix}/{name}": value for name, value in found.items()}


def raised(detector, rows) -> list[tuple[int, Alarm | None]]:
    found = []
    for update, row in enumerate(rows, start=1):
        detector.add(update, row)
        found.append((update, detector.alarm))
    return found


BEYOND = yaml.safe_load(Path(__file__).with_name("limits.yaml").read_text())


def test_a_drift_is_an_alarm_while_the_reward_pays_for_it_and_is_over_when_it_comes_back():
    def drift(worse):
        return Drift("critic/dark", prompts=16, samples=8, worse=worse)

    means = [0.2] * 2 + [0.5] * 3 + [0.2] * 8 + [0.5] * 2
    found = raised(drift("higher"), map(statistic, means))
    assert [update for update, alarm in found if alarm] == [4, 5, 6, 15]
    assert found[3][1].text.startswith("dark rose from 0.200 to ")
    rising, falling = (0.2, 0.2, 0.6, 0.6), (0.6, 0.6, 0.2, 0.2)
    for series, way in ((rising, 1), (falling, -1)):
        for correlation, told in ((0.6, True), (0.0, False), (-0.6, False)):
            rows = [statistic(mean, way * correlation) for mean in series]
            assert (raised(drift(None), rows)[-1][1] is not None) == told
        assert (raised(drift("higher"), [statistic(mean) for mean in series])[-1][1] is None) == (way < 0)


@pytest.mark.parametrize("name", LIMITS)
def test_a_level_is_named_after_three_updates_beyond_it(name):
    usual, beyond = BEYOND[name]
    rows = [usual] * 22 + [beyond] * 2 + [usual] + [beyond] * 3 + [{}, usual]
    found = raised(Threshold(name, OPTIONS), rows)
    assert [update for update, alarm in found if alarm] == [28, 29]  # an update without the metric says nothing
    alarm = found[27][1]
    assert alarm is not None
    assert (alarm.name, alarm.since) == (name, 26)
    assert f"for 3 updates in a row, since update 26); in the first updates {LIMITS[name].metric} was" in alarm.text
    assert alarm.text.endswith(LIMITS[name].means)
