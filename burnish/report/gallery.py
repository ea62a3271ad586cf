"""Samples of the same prompts with the same noise, before and after training."""

from __future__ import annotations

from html import escape

from burnish.config.run_folder import STEP, RunFolder
from burnish.report.media import Embedded
from burnish.report.samples import Sample, Samples, read_samples
from burnish.report.summary import Summary

OPEN = 4  # prompts that are visible; the others unfold
MOST = 8  # samples per prompt
BETWEEN = 3  # validations between the first and the last
GLIMPSE = 2  # samples per prompt of these
DRAWN, WRITTEN = 4, 3  # prompts that are shown first of all, of models that draw and that write
CHOSEN = "The first validation prompts, not cherry-picked."


def gallery(folder: RunFolder, run: Summary, show: Embedded) -> str:
    """HTML of the gallery, or of a note that there are no samples."""
    sides = _sides(folder, run)
    if not sides:
        return f"<h2>{run.words.gallery}</h2><p>No validation has kept {run.words.samples} yet.</p>"
    numbers = sorted({index for index, _ in sides[-1][1]})
    way = _between(folder, run)
    # prompts that unfold show no intermediate samples, so that the page stays small
    cards = [_card(index, sides, way if i < OPEN else [], show) for i, index in enumerate(numbers)]
    hidden = ""
    if len(cards) > OPEN:
        more = f"{len(cards) - OPEN} more prompts"
        hidden = f"<details><summary>{more}</summary>{''.join(cards[OPEN:])}</details>"
    same = f" {run.words.same}" if len(sides) == 2 else ""
    return f"<h2>{run.words.gallery}</h2><p>{CHOSEN}{same} {run.words.below}</p>{''.join(cards[:OPEN])}{hidden}"


def first_samples(folder: RunFolder, run: Summary) -> list[tuple[int, list[tuple[str, int, Sample]]]]:
    """The first prompts by index: the title of each side, the number of its first sample, and the sample."""
    sides = _sides(folder, run)
    if not sides:
        return []
    drawn = next(iter(sides[-1][1].values())).response is None
    found = []
    for index in sorted({index for index, _ in sides[-1][1]})[: DRAWN if drawn else WRITTEN]:
        places = [(title, samples, min(place for place in samples if place[0] == index)) for title, samples in sides
                  if any(number == index for number, _ in samples)]  # fmt: skip
        found.append((index, [(title, place[1], samples[place]) for title, samples, place in places]))
    return found


def _sides(folder: RunFolder, run: Summary) -> list[tuple[str, Samples]]:
    """What validations kept of the untrained and of the trained model."""
    rows = [row for row in (run.before, run.after) if row is not None]
    kept = [(_title(row[STEP]), read_samples(folder.validation(row[STEP]))) for row in rows]
    return [side for side in kept if side[1]]


def _title(update: int) -> str:
    return f"after {update} update{'s' * (update > 1)}" if update else "before training"


def _between(folder: RunFolder, run: Summary) -> list[tuple[str, Samples]]:
    """Up to ``BETWEEN`` validations of the trained model before the last one, evenly spaced."""
    last = run.after[STEP] if run.after is not None else 0
    return [(_title(update), read_samples(folder.validation(update))) for update in spaced(folder, last, BETWEEN)]


def spaced(folder: RunFolder, last: int, most: int) -> list[int]:
    """Up to ``most`` validations before the last one of the trained model, evenly spaced."""
    updates = [update for update in folder.validations() if 0 < update < last]
    if len(updates) > most:
        updates = [updates[(2 * i + 1) * len(updates) // (2 * most)] for i in range(most)]
    return updates


def _way(index: int, way: list[tuple[str, Samples]], show: Embedded) -> str:
    """A prompt's first samples during training, which unfold."""
    parts = []
    for title, samples in way:
        shown = [sample for (number, _), sample in sorted(samples.items()) if number == index][:GLIMPSE]
        if not shown:
            continue
        written = shown[0].response is not None
        body = _response(shown[0]) if written else "".join(_figure(sample, show) for sample in shown)
        kind = "" if written else ' class="pictures across2"'
        parts.append(f"<div><h4>{title}</h4><div{kind}>{body}</div></div>")
    if not parts:
        return ""
    return f'<details class="way"><summary>on the way</summary><div class="between">{"".join(parts)}</div></details>'


def _card(index: int, sides: list[tuple[str, Samples]], way: list[tuple[str, Samples]], show: Embedded) -> str:
    columns = []
    ordered = (place for _, samples in reversed(sides) for place in sorted(samples.items()))
    asked = next(sample for (number, _), sample in ordered if number == index)
    for title, samples in sides:
        shown = [sample for (number, _), sample in sorted(samples.items()) if number == index][:MOST]
        if shown and shown[0].response is not None:
            columns.append(f"<div><h4>{title}</h4>{''.join(map(_response, shown))}</div>")
            continue
        across = min(len(shown), 4 if len(shown) % 3 else 3) or 1
        figures = "".join(_figure(sample, show) for sample in shown)
        columns.append(f'<div><h4>{title}</h4><div class="pictures across{across}">{figures}</div></div>')
    sided = "sides" if len(sides) == 2 else "sides alone"
    body = f'<div class="{sided}">{"".join(columns)}</div>'
    head = f"<h3>{escape(asked.prompt)}</h3>{_question(asked, show)}"
    return f'<section class="card">{head}{body}{_way(index, way, show)}</section>'


def _question(sample: Sample, show: Embedded) -> str:
    """Images and right answer of a question, or the images that samples begin from."""
    pictures = "".join(show(path, f"{sample.prompt}, {path.stem}") for path in sample.shown)
    asked = sample.response is not None and sample.answer is not None
    answer = f"<span>right answer: {escape(sample.answer or '')}</span>" if asked else ""
    begun = "<span>is what the samples begin from</span>" if pictures and sample.response is None else ""
    return f'<div class="asked">{pictures}{answer}{begun}</div>' if pictures or answer else ""


def _response(sample: Sample) -> str:
    return (
        f'<div class="response"><code>{escape(sample.response or "")}</code><p class="score">{_score(sample)}</p></div>'
    )


def _score(sample: Sample) -> str:
    """A mark for right or wrong, the reward, and its note."""
    reward = "missing" if sample.reward is None else f"{sample.reward:.2f}".replace("-", "−")
    marks = {
        None: "",
        True: '<b class="good" title="exactly right">✓</b>',
        False: '<b class="bad" title="not exactly right">×</b>',
    }
    note = f'<span class="note">{escape(sample.note)}</span>' if sample.note else ""
    return f"{marks[sample.exact]}<span>{reward}</span>{note}"


def _figure(sample: Sample, show: Embedded) -> str:
    picture = show(sample.picture, f"{sample.prompt}, {sample.picture.stem}")
    return f"<figure>{picture}<figcaption>{_score(sample)}</figcaption></figure>"
