"""A move of a mean is told from chance, at any time of a run, with the stated rate of false alarms."""

import math

import numpy as np
import pytest

from burnish.alarms.detectors import Series
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
