"""A move of a mean is told from chance, at any time of a run, with the stated rate of false alarms."""

import math

import numpy as np
import pytest

from burnish.alarms.rule import Series
from burnish.options.alarms import AlarmOptions

RATE = 0.01


def series(means, *, prompts: int = 16, std: float = 0.1, error: float | None = 0.01) -> Series:
    found = Series(prompts, 0.001)
    for update, mean in enumerate(means, start=1):
        found.add(update, mean, std, error)
    return found


def test_a_move_is_told_in_spreads_of_the_first_samples_with_the_update_that_it_began_at():
    move = series([0.2, 0.2, 0.22, 0.28, 0.35, 0.41]).move(1.0)
    assert move is not None
    assert (move.before, move.now, move.since) == (0.2, 0.38, 4)
    assert move.spreads == pytest.approx(1.8)
    assert series([0.2, 0.2, 0.22, 0.28, 0.35]).move(1.0) is None  # one update is chance
    fell = series([0.6, 0.6, 0.5, 0.4, 0.3]).move(1.0)
    assert fell is not None
    assert fell.spreads < 0


def test_a_move_that_the_error_of_means_explains_is_chance():
    means = [0.5, 0.5, 0.65, 0.65, 0.66, 0.65]
    assert series(means, error=0.01).move(1.0) is not None
    assert series(means, error=0.06).move(1.0) is None


def test_means_without_errors_are_judged_by_how_they_bend():
    steady = [0.5 + 0.001 * (n % 2) for n in range(8)]
    assert series([*steady[:3], 0.9, 0.9], error=None).move(1.0) is None  # too few to tell
    assert series([*steady, 0.9, 0.9, 0.9], error=None).move(1.0) is not None
    alternating = [0.5 + 0.3 * (n % 2) for n in range(20)]
    assert series([*alternating, 0.9, 0.9], error=0.0).move(1.0) is None  # though errors say that it can't be chance


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


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_honest_series_raise_no_more_false_alarms_than_is_said(kind):
    assert false_alarms(kind, 8, 6, 200, 60) <= 6  # 2 are expected at most


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "samples"), [(2, 4), (8, 8), (32, 4)])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_thousands_of_honest_series(kind, prompts, samples):
    assert false_alarms(kind, prompts, samples, 1000, 200, AlarmOptions().shift) <= 1.7 * RATE * 1000


def test_a_move_of_half_a_spread_is_found_where_prompts_are_enough():
    draw, found = np.random.default_rng(0), 0
    for _ in range(50):
        values = draw.normal(size=(30, 32, 8)) + 0.6 * (np.arange(30) >= 10)[:, None, None]
        one = Series(32, RATE)
        for update, some in enumerate(values, start=1):
            one.add(update, float(some.mean()), float(some.std()), float(some.mean(1).std(ddof=1)) / math.sqrt(32))
        found += one.move(0.3) is not None
    assert found == 50
