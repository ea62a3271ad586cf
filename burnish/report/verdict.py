"""What was gained and lost, in sentences, and what a run's own numbers don't say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from burnish.config.run_folder import STEP
from burnish.report.statistics import BORDER, FORMAT, GIVEN, REWARD, SPACE, VARIETY, Change, Measure
from burnish.report.summary import Summary
from burnish.utils.terminal import counted

FEW = "too few prompts were evaluated to tell it from chance"
MAYBE = "no clear change, as this may be chance"
FELL_BACK = 0.02  # last validation below the best one by this is reported

Kind = Literal["gained", "kept", "lost", "weigh"]


# what is said of a measure that rose or fell, of which too few prompts are known (as of an unclear one, if nothing is
# said of that), whose change is too small to matter, or may be chance
Case = Literal["rose", "fell", "unknown", "small", "unclear"]
Texts = dict[Case, tuple[Kind, str]]
_NUMBERS = "from {before} to {after}"
REWARDED: Texts = {
    "rose": ("gained", f"The validation reward rose {_NUMBERS} ({{change}})."),
    "fell": ("lost", f"The validation reward fell {_NUMBERS} ({{change}})."),
    "unknown": ("weigh", f"The validation reward went {_NUMBERS}; {FEW}."),
    "small": ("weigh", f"The validation reward hardly moved: {_NUMBERS} ({{change}})."),
    "unclear": (
        "weigh", f"No clear change of the validation reward, which went {_NUMBERS}; prompts differ so much that this "
        "may be chance ({change}).",
    ),
}  # fmt: skip
_RIGHT = "{words.exact}: {before} before, {after} after ({change})"
RIGHT: Texts = {
    "rose": ("gained", f"{_RIGHT}."), "fell": ("lost", f"{_RIGHT}."), "unknown": ("weigh", f"{_RIGHT}; {FEW}."),
    "small": ("weigh", f"{_RIGHT}."), "unclear": ("weigh", f"{_RIGHT}: {MAYBE}."),
}  # fmt: skip
_DARKNESS = "border darkness {before} before, {after} after."
BACKGROUND: Texts = {
    "rose": ("lost", f"The background got darker or dirtier: {_DARKNESS}"),
    "fell": ("gained", f"The background got cleaner: {_DARKNESS}"),
    "small": ("kept", f"The background hardly changed: {_DARKNESS}"),
    "unclear": ("kept", f"The background has not clearly changed: {_DARKNESS}"),
}
_ALIKE = "variety {before} before, {after} after"
ALIKE: Texts = {
    "rose": ("gained", f"{{Samples}} of one prompt became less alike: {_ALIKE}."),
    "fell": ("lost", f"{{Samples}} of one prompt became more alike: {_ALIKE} ({{less:.0f}}{SPACE}% less)."),
    "small": ("kept", f"{{Samples}} of one prompt differ as much as before: {_ALIKE}."),
    "unclear": ("kept", f"{{Samples}} of one prompt have not clearly become more or less alike: {_ALIKE}."),
}
FORMED = {
    "rose": "more than the form was learned", "fell": "they are right less often", "unknown": FEW, "unclear": MAYBE,
    "small": "neither has clearly changed",
}  # fmt: skip


def _case(change: Change) -> Case:
    """What is to be said of a change."""
    if change.sign:
        return "rose" if change.sign == 1 else "fell"
    return "unknown" if change.chance == math.inf else "small" if change.small else "unclear"


def _text(change: Change, form: str, **more: object) -> str:
    """A sentence with {before}, {after} and {change} filled in."""
    measure, (number, interval) = change.measure, change.shown()
    points = f"{SPACE}points" if measure.percent else ""
    shown = f"{number}{SPACE}±{SPACE}{interval}{points}" if interval else f"{number}{points}"
    return form.format(before=measure.show(change.before), after=measure.show(change.after), change=shown, **more)


def verdict(run: Summary) -> Iterator[tuple[Kind, str]]:
    """The sentences, most important first; none before there are two validations."""
    if run.before is None or run.after is None:
        return
    yield from _of_measure(run, REWARD, REWARDED)
    yield from _of_measure(run, run.exact, RIGHT)
    yield from _form(run)
    yield from _pass_at_k(run)
    yield from _guidance(run)
    for pattern in run.lost_patterns:
        yield "weigh", f"Disappearing pattern: {pattern.text()}."
    yield from _of_measure(run, BORDER, BACKGROUND)
    yield from _of_measure(run, VARIETY, ALIKE)
    yield from _peak(run)
    if run.updates < run.planned:
        yield "weigh", f"The run is not finished: {run.updates} of {counted(run.planned, 'updates')} are done."
    if run.config.get("data", {}).get("val_files", "") is None:
        yield "weigh", "Validation used the training prompts: it says nothing about new ones."
    seed = run.config.get("seed")
    which = "" if seed is None else f" with seed {seed}"
    yield "weigh", f"These are the numbers of one run{which}; another seed gives others."


def headline(run: Summary) -> str:
    """The verdict in one sentence; "" before there are two validations."""
    if run.before is None or run.after is None:
        return ""
    reward, *others = [run.change(measure) for measure in run.measures]
    watched = [change for change in others if change is not None]
    worse = " and ".join(change.measure.title.lower() for change in watched if change.measure.better * change.sign < 0)
    sign = 0 if reward is None else reward.sign
    if sign == 0:
        text = f"No clear change in what it was trained for{f', and {worse} got worse' if worse else ''}."
    elif sign < 0:
        text = "It got worse at what it was trained for."
    elif watched:
        end = f"at a price: {worse} got worse." if worse else "and nothing that was watched got worse."
        text = f"It learned what it was trained for, {end}"
    else:
        text = "It learned what it was trained for; nothing else was watched."
    if run.active:
        names = ", ".join(raised.name.replace("_", " ") for raised in run.active)
        text += f" Look at the alarm{'s' * (len(run.active) > 1)}: {names}."
    if run.lost_patterns:
        patterns = ", ".join(pattern.what for pattern in run.lost_patterns)
        text += f" Disappearing pattern{'s' * (len(run.lost_patterns) > 1)}: {patterns}."
    return text


def _of_measure(run: Summary, measure: Measure, texts: Texts) -> Iterator[tuple[Kind, str]]:
    change = run.change(measure)
    if change is not None and (change.before or measure is not VARIETY):
        case = _case(change)
        if case not in texts:
            case = "small" if change.small else "unclear"
        kind, text = texts[case]
        less = 100 * (1 - change.after / change.before) if change.before else 0.0
        yield kind, _text(change, text, words=run.words, Samples=run.words.samples.capitalize(), less=less)


def _form(run: Summary) -> Iterator[tuple[Kind, str]]:
    """How much of a rise is format alone."""
    form, given = run.change(FORMAT), run.change(GIVEN)
    if form is None or given is None:
        return
    text = _text(form, "The form that was asked for is kept by {after} of the responses ({before} before). ")
    text += _text(given, "Among those that keep it, {after} are right ({before} before; {change})")
    case = "small" if given.small else _case(given)
    end = "what was learned is the form" if case == "small" and form.sign == 1 else FORMED[case]
    yield RIGHT[_case(given)][0], f"{text}: {end}."


def _pass_at_k(run: Summary) -> Iterator[tuple[Kind, str]]:
    """Whether it can do more than before, or does more often what it could."""
    if run.pass_at_k is None or not run.pass_at_k.kind:
        return
    before, after, doubt = run.pass_at_k.best
    change = f"{after - before:+.3f} ± {doubt:.3f}"
    numbers = f"the best of {run.pass_at_k.n} samples went from {before:.3f} to {after:.3f} ({change})"
    ways: dict[str, tuple[Kind, str]] = {
        "learning": ("gained", "It can do more than before"),
        "collapse": ("lost", "It can do less than before, and does that more often"),
        "sharpening": ("weigh", "It does more often what it could do before; whether it can do more is not clear"),
    }
    kind, text = ways[run.pass_at_k.kind]
    yield kind, f"{text}: {numbers}."


def _guidance(run: Summary) -> Iterator[tuple[Kind, str]]:
    """Comparison with guidance alone, without training."""
    reached, reward = REWARD.of(run.reference), run.change(REWARD)
    if run.reference is None or reached is None or reward is None:
        return
    own = run.config.get("rollout", {}).get("guidance_scale", 1.0)
    cost = "at twice the sampling cost" if own == 1 else f"where the run samples at guidance {own:g}"
    exact = run.exact.of(run.reference)
    also = f" ({run.exact.show(exact)} exactly right)" if exact is not None else ""
    scale = run.reference["guidance_scale"]
    text = f"Guidance {scale:g} alone, without training, reaches {REWARD.show(reached)}{also}, {cost}."
    half = ", at half the cost" if own == 1 else ""
    if reward.chance == math.inf:
        yield "weigh", f"{text} Whether the trained model is level with that is unknown: {FEW}."
    elif replace(reward, before=reached).sign == 1:
        yield "gained", f"{text} The trained model is beyond that{half}."
    elif reward.after >= reached:  # a model that has not risen was so before
        yield "gained" if reward.sign == 1 else "weigh", f"{text} The trained model is level with that{half}."
    elif reward.sign == 1 and reached > reward.before:
        share = 100 * (reward.after - reward.before) / (reached - reward.before)
        yield "weigh", f"{text} Training closed {share:.0f}{SPACE}% of that gap{half}."
    else:
        yield "weigh", f"{text} Training did not come closer to it."


def _peak(run: Summary) -> Iterator[tuple[Kind, str]]:
    rewards = {row[STEP]: reward for row in run.validated if (reward := REWARD.of(row)) is not None}
    best = max(rewards, key=lambda update: rewards[update])
    fell = rewards[best] - (REWARD.of(run.after) or 0.0)
    if best > 0 and fell >= max(FELL_BACK, run.doubt.get(REWARD.key, 0.0)):
        kept = bool(run.config.get("checkpoint", {}).get("keep_best"))
        text = f"The best validation came earlier: {REWARD.show(rewards[best])} after update {best}."
        yield "lost", text + " The checkpoint nearest to the best validation is kept in checkpoints." * kept
