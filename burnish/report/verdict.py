"""What was gained and lost, in sentences."""

from __future__ import annotations

import math

from burnish.config.run_folder import STEP
from burnish.report.measures import BORDER, FORMAT, GIVEN, REWARD, VARIETY, Measure
from burnish.report.summary import FELL_BACK, Point, Summary

FEW = "too few prompts were evaluated to tell it from chance"


def verdict(run: Summary) -> list[Point]:
    """The sentences, most important first; none before there are two validations."""
    if run.before is None or run.after is None:
        return []
    points = [
        *_reward(run), *_exact(run), *_form(run), *_passes(run), *_guidance(run), *_habits(run), *_border(run),
        *_variety(run), *_peak(run),
    ]  # fmt: skip
    if run.updates < run.planned:
        text = f"The run is not finished: {run.updates} of {run.planned} updates are done."
        points.append(Point("weigh", text))
    if run.config.get("data", {}).get("val_files", "") is None:
        points.append(Point("weigh", "Validation used the training prompts: it says nothing about new ones."))
    seed = run.config.get("seed")
    which = "" if seed is None else f" with seed {seed}"
    points.append(Point("weigh", f"These are the numbers of one run{which}; another seed gives others."))
    return points


def headline(run: Summary) -> str:
    """The verdict in one sentence; "" before there are two validations."""
    if run.before is None or run.after is None:
        return ""
    reward, *watched = run.measures()
    ways = [one.better * one.sign(*_pair(run, one)) for one in watched if _known(run, one)]
    names = [one.title.lower() for one in watched if _known(run, one)]
    worse = " and ".join(name for name, way in zip(names, ways, strict=True) if way < 0)
    patterns = ", ".join(one.what for one in run.habits)
    rare = f" Disappearing pattern{'s' * (len(run.habits) > 1)}: {patterns}." if patterns else ""
    alarmed = ", ".join(one.name.replace("_", " ") for one in run.standing)
    alarms = f" Look at the alarm{'s' * (len(run.standing) > 1)}: {alarmed}." if alarmed else ""
    return _sentence(reward.sign(*_pair(run, reward)), names, worse) + alarms + rare


def _sentence(way: int, names: list[str], worse: str) -> str:
    match way:
        case 1 if worse:
            return f"It learned what it was trained for, at a price: {worse} got worse."
        case 1 if names:
            return "It learned what it was trained for, and nothing that was watched got worse."
        case 1:
            return "It learned what it was trained for; nothing else was watched."
        case -1:
            return "It got worse at what it was trained for."
    return "No clear change in what it was trained for" + (f", and {worse} got worse." if worse else ".")


def _reward(run: Summary) -> list[Point]:
    before, after = _pair(run, REWARD)
    reward = run.doubted(REWARD)
    numbers = f"from {reward.show(before)} to {reward.show(after)}"
    change = f" ({reward.change(before, after)})"
    match reward.sign(before, after):
        case 1:
            return [Point("gained", f"The validation reward rose {numbers}{change}.")]
        case -1:
            return [Point("lost", f"The validation reward fell {numbers}{change}.")]
    if reward.chance == math.inf:
        return [Point("weigh", f"The validation reward went {numbers}; {FEW}.")]
    if REWARD.sign(before, after) == 0:
        return [Point("weigh", f"The validation reward hardly moved: {numbers}{change}.")]
    text = f"No clear change of the validation reward, which went {numbers}"
    return [Point("weigh", f"{text}; prompts differ so much that this may be chance{change}.")]


def _exact(run: Summary) -> list[Point]:
    exact = run.doubted(run.exact)
    if not _known(run, exact):
        return []
    before, after = _pair(run, exact)
    text = f"{run.words.exact}: {exact.show(before)} before, {exact.show(after)} after ({exact.change(before, after)})"
    match exact.sign(before, after):
        case 1:
            return [Point("gained", f"{text}.")]
        case -1:
            return [Point("lost", f"{text}.")]
    if exact.chance == math.inf:
        return [Point("weigh", f"{text}; {FEW}.")]
    chance = "" if run.exact.sign(before, after) == 0 else ": no clear change, as this may be chance"
    return [Point("weigh", f"{text}{chance}.")]


def _form(run: Summary) -> list[Point]:
    """How much of a rise is format alone."""
    if not (_known(run, FORMAT) and _known(run, GIVEN)):
        return []
    (was, now), (before, after) = _pair(run, FORMAT), _pair(run, GIVEN)
    form, given = run.doubted(FORMAT), run.doubted(GIVEN)
    text = (
        f"The form that was asked for is kept by {form.show(now)} of the responses ({form.show(was)} before). "
        f"Among those that keep it, {given.show(after)} are right ({given.show(before)} before; "
        f"{given.change(before, after)})"
    )
    match given.sign(before, after):
        case 1:
            return [Point("gained", f"{text}: more than the form was learned.")]
        case -1:
            return [Point("lost", f"{text}: they are right less often.")]
    if GIVEN.sign(before, after) != 0:
        unclear = FEW if given.chance == math.inf else "no clear change, as this may be chance"
        return [Point("weigh", f"{text}: {unclear}.")]
    learned = "what was learned is the form" if form.sign(was, now) == 1 else "neither has clearly changed"
    return [Point("weigh", f"{text}: {learned}.")]


def _passes(run: Summary) -> list[Point]:
    """Whether it can do more than before, or does more often what it could."""
    found = run.passes
    if found is None or not found.kind:
        return []
    before, after, doubt = found.best
    change = f"{after - before:+.3f} ± {doubt:.3f}"
    numbers = f"the best of {found.n} samples went from {before:.3f} to {after:.3f} ({change})"
    match found.kind:
        case "learning":
            return [Point("gained", f"It can do more than before: {numbers}.")]
        case "narrowing":
            return [Point("lost", f"It can do less than before, and does that more often: {numbers}.")]
    return [
        Point("weigh", f"It does more often what it could do before; whether it can do more is not clear: {numbers}.")
    ]


def _habits(run: Summary) -> list[Point]:
    """Lost habits, which no measure shows."""
    return [Point("weigh", f"Disappearing pattern: {one.text()}.") for one in run.habits]


def _guidance(run: Summary) -> list[Point]:
    """Comparison with guidance alone, without training."""
    reached = REWARD.of(run.reference)
    if run.reference is None or reached is None:
        return []
    before, after = _pair(run, REWARD)
    own = run.config.get("rollout", {}).get("guidance_scale", 1.0)
    cost = "at twice the sampling cost" if own == 1 else f"where the run samples at guidance {own:g}"
    exact = run.exact.of(run.reference)
    also = f" ({run.exact.show(exact)} exactly right)" if exact is not None else ""
    scale = run.reference["guidance_scale"]
    text = f"Guidance {scale:g} alone, without training, reaches {REWARD.show(reached)}{also}, {cost}. "
    half = ", at half the cost" if own == 1 else ""
    reward = run.doubted(REWARD)
    if reward.chance == math.inf:
        return [Point("weigh", f"{text}Whether the trained model is level with that is unknown: {FEW}.")]
    if reward.sign(reached, after) == 1:
        return [Point("gained", f"{text}The trained model is beyond that{half}.")]
    if after >= reached:
        rose = reward.sign(before, after) == 1  # or it was so before
        return [Point("gained" if rose else "weigh", f"{text}The trained model is level with that{half}.")]
    if reward.sign(before, after) == 1 and reached > before:
        share = 100 * (after - before) / (reached - before)
        return [Point("weigh", f"{text}Training closed {share:.0f}\N{NO-BREAK SPACE}% of that gap{half}.")]
    return [Point("weigh", f"{text}Training did not come closer to it.")]


def _border(run: Summary) -> list[Point]:
    if not _known(run, BORDER):
        return []
    before, after = _pair(run, BORDER)
    border = run.doubted(BORDER)
    numbers = f"border darkness {border.show(before)} before, {border.show(after)} after"
    match border.sign(before, after):
        case 1:
            return [Point("lost", f"The background got darker or dirtier: {numbers}.")]
        case -1:
            return [Point("gained", f"The background got cleaner: {numbers}.")]
        case _:
            return [Point("kept", f"The background {_unmoved(BORDER, before, after)}: {numbers}.")]


def _variety(run: Summary) -> list[Point]:
    if not _known(run, VARIETY) or not VARIETY.of(run.before):
        return []
    before, after = _pair(run, VARIETY)
    variety = run.doubted(VARIETY)
    samples = f"{run.words.samples.capitalize()} of one prompt"
    numbers = f"variety {variety.show(before)} before, {variety.show(after)} after"
    match variety.sign(before, after):
        case 1:
            return [Point("gained", f"{samples} became less alike: {numbers}.")]
        case -1:
            less = f"{100 * (1 - after / before):.0f}\N{NO-BREAK SPACE}% less"
            return [Point("lost", f"{samples} became more alike: {numbers} ({less}).")]
        case _:
            moved = VARIETY.sign(before, after) != 0
            words = "have not clearly become more or less alike" if moved else "differ as much as before"
            return [Point("kept", f"{samples} {words}: {numbers}.")]


def _peak(run: Summary) -> list[Point]:
    best = max(run.validated, key=lambda row: REWARD.of(row) or float("-inf"))
    peak, last = REWARD.of(best), REWARD.of(run.after)
    assert peak is not None
    assert last is not None
    if peak - last < max(FELL_BACK, run.doubted(REWARD).chance) or best[STEP] == 0:
        return []
    text = f"The best validation came earlier: {REWARD.show(peak)} after update {best[STEP]}."
    if run.config.get("checkpoint", {}).get("keep_best"):
        text += " The checkpoint nearest to the best validation is kept in checkpoints."
    return [Point("lost", text)]


def _unmoved(measure: Measure, before: float, after: float) -> str:
    """Words for an insignificant change."""
    return "has not clearly changed" if measure.sign(before, after) else "hardly changed"


def _known(run: Summary, measure: Measure) -> bool:
    return measure.of(run.before) is not None and measure.of(run.after) is not None


def _pair(run: Summary, measure: Measure) -> tuple[float, float]:
    before, after = measure.of(run.before), measure.of(run.after)
    assert before is not None
    assert after is not None
    return before, after
