"""What was gained and what was lost, in sentences that follow from the numbers."""

from __future__ import annotations

from burnish.folder import STEP
from burnish.report.summary import (
    ALIKE,
    BORDER,
    DARKER,
    EXACT,
    FELL_BACK,
    HARDLY,
    REWARD,
    VARIETY,
    Point,
    Summary,
)


def verdict(run: Summary) -> list[Point]:
    """The sentences, most important first; none before there are two validations to compare."""
    if run.before is None or run.after is None:
        return []
    points = [_reward(run), *_exact(run), *_guidance(run), *_border(run), *_variety(run), *_peak(run)]
    if run.updates < run.planned:
        points.append(Point(0, f"The run is not finished: {run.updates} of {run.planned} updates are done."))
    return points


def _reward(run: Summary) -> Point:
    before, after = _pair(run, REWARD.key)
    numbers = f"from {REWARD.show(before)} to {REWARD.show(after)}"
    if abs(after - before) < HARDLY:
        return Point(0, f"The validation reward hardly moved: {numbers}.")
    rose = after > before
    return Point(1 if rose else -1, f"The validation reward {'rose' if rose else 'fell'} {numbers}.")


def _exact(run: Summary) -> list[Point]:
    if EXACT.of(run.before) is None or EXACT.of(run.after) is None:
        return []
    before, after = _pair(run, EXACT.key)
    numbers = f"{EXACT.show(before)} before, {EXACT.show(after)} after"
    sign = 0 if abs(after - before) < HARDLY else (1 if after > before else -1)
    return [Point(sign, f"Pictures whose text is read exactly right: {numbers}.")]


def _guidance(run: Summary) -> list[Point]:
    reached = REWARD.of(run.reference)
    if run.reference is None or reached is None:
        return []
    before, after = _pair(run, REWARD.key)
    own = run.config.get("rollout", {}).get("guidance_scale", 1.0)
    cost = "at twice the sampling cost" if own == 1 else f"where the run samples at guidance {own:g}"
    exact = EXACT.of(run.reference)
    also = f" and {EXACT.show(exact)} exact" if exact is not None else ""
    text = (
        f"Without any training, guidance {run.reference['guidance_scale']:g} alone reaches "
        f"{REWARD.show(reached)}{also}, {cost}. "
    )
    if after >= reached:
        return [Point(1, text + "The trained model is beyond that.")]
    if after - before >= HARDLY and reached - before >= HARDLY:
        share = 100 * (after - before) / (reached - before)
        half = " at half the cost" if own == 1 else ""
        return [Point(0, text + f"Training closed {share:.0f} % of that gap{half}.")]
    return [Point(0, text + "Training did not come closer to it.")]


def _border(run: Summary) -> list[Point]:
    if BORDER.of(run.before) is None or BORDER.of(run.after) is None:
        return []
    before, after = _pair(run, BORDER.key)
    numbers = f"border darkness {BORDER.show(before)} before, {BORDER.show(after)} after"
    if after - before >= DARKER:
        return [Point(-1, f"The pictures got dirtier in a way that the reward does not punish: {numbers}.")]
    if before - after >= DARKER:
        return [Point(1, f"The background got cleaner: {numbers}.")]
    return [Point(1, f"The background stayed clean: {numbers}.")]


def _variety(run: Summary) -> list[Point]:
    if not VARIETY.of(run.before) or VARIETY.of(run.after) is None:
        return []
    before, after = _pair(run, VARIETY.key)
    share = after / before - 1
    numbers = f"variety {VARIETY.show(before)} before, {VARIETY.show(after)} after"
    if share <= -ALIKE:
        return [
            Point(-1, f"Pictures of one prompt became more alike: {numbers} ({-100 * share:.0f} % less).")
        ]
    if share >= ALIKE:
        return [Point(0, f"Pictures of one prompt became less alike: {numbers}.")]
    return [Point(1, f"Pictures of one prompt kept their variety: {numbers}.")]


def _peak(run: Summary) -> list[Point]:
    best = max(run.judged, key=lambda row: REWARD.of(row) or float("-inf"))
    peak, last = REWARD.of(best), REWARD.of(run.after)
    assert peak is not None
    assert last is not None
    if peak - last < FELL_BACK or best[STEP] == 0:
        return []
    return [
        Point(
            -1,
            f"The best validation came earlier: {REWARD.show(peak)} after update {best[STEP]}. "
            "Its checkpoint is kept if checkpoint.keep_best is true.",
        )
    ]


def _pair(run: Summary, key: str) -> tuple[float, float]:
    measure = next(m for m in (REWARD, EXACT, BORDER, VARIETY) if m.key == key)
    before, after = measure.of(run.before), measure.of(run.after)
    assert before is not None
    assert after is not None
    return before, after
