"""What a run came to, as plain data: the board's page, report.html, report.md and the model card show it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from burnish.alarms.detectors import LAST
from burnish.alarms.record import Raised, amount, number
from burnish.config.run_folder import STEP, RunFolder
from burnish.evaluation.records import HEADER, RECORDS, Evaluation, changes, shown
from burnish.report.prompts import of_prompt, prompt_data, sample_data
from burnish.report.runs import NOTES
from burnish.report.samples import MOST_SCORED, chosen, cut, read_samples, relative, series
from burnish.report.statistics import REWARD, SPACE, Change, Measure
from burnish.report.summary import Summary, next_steps
from burnish.report.verdict import headline, verdict
from burnish.utils.errors import UserError
from burnish.utils.paths import SUITES
from burnish.utils.records import cached, leads_out, stamp
from burnish.utils.terminal import counted

WORDS = {
    "gained": ("good", "+ gained"),
    "kept": ("good", "= kept"),
    "lost": ("bad", "− lost"),
    "weigh": ("", "to weigh"),
}
IMAGES, RESPONSES = 4, 3  # prompts that are shown first of all
CHOSEN = "The first validation prompts, not cherry-picked."
ALARMS_ABOUT = (
    "An alarm says that something has moved, not that it is bad, and a run without alarms is not thereby a good one: "
    "look whether this is what you want."
)


def overview(folder: RunFolder, run: Summary) -> dict[str, Any]:
    """Everything but curves, samples and prompts."""
    return {
        "title": folder.path.resolve().name, "sentence": run.sentence(), "headline": headline(run),
        "glimpse": glimpse(folder, run), "chosen": CHOSEN, "same": run.words.same * bool(run.before and run.after),
        "numbers": numbers(run), "sources": sources(run),
        "verdict": [dict(zip(("kind", "word"), WORDS[kind], strict=True), text=text) for kind, text in verdict(run)],
        "warnings": run.warnings(), "alarms_about": ALARMS_ABOUT,
        "alarms": [
            *(_alarm(folder, run, raised) for raised in sorted(run.alarms, key=lambda raised: raised.over is not None)),
            *({
                "name": f"{one.alarm} acted: {one.kind}".replace("_", " "), "over": False,
                "texts": [f"Update {one.update}: {one.text}."], "sheets": [], "quotes": [],
            } for one in run.actions),
        ],
        "suites": suite_data(folder), "suites_about": SUITES_ABOUT,
        "updates": run.updates, "samples": run.words.samples, "gallery": run.words.gallery,
        "config": folder.config.read_text(encoding="utf-8") if folder.config.is_file() else "",
        "next": [{"what": what, "command": command} for what, command in next_steps(folder, run)],
    }  # fmt: skip


def glimpse(folder: RunFolder, run: Summary) -> list[dict[str, Any]]:
    """The first sample of the first prompts before and after, each with the title of its side."""
    updates = [row[STEP] for row in (run.before, run.after) if row is not None]
    updates = [update for update in updates if read_samples(folder.validation(update))]
    last = read_samples(folder.validation(updates[-1])) if updates else {}
    most = IMAGES if all(sample.response is None for sample in last.values()) else RESPONSES
    prompts = []
    for index in sorted({prompt for prompt, _ in last})[:most]:
        firsts = {update: own[0] for update in updates if (own := of_prompt(folder, update, index))}
        sides = [
            {"title": f"after {counted(update, 'updates')}" if update else "before training"}
            | sample_data(folder, sample)
            for update, sample in firsts.items()
        ]
        prompts.append(prompt_data(folder, firsts[updates[-1]]) | {"index": index, "sides": sides})
    return prompts


def _alarm(folder: RunFolder, run: Summary, raised: Raised) -> dict[str, Any]:
    """What was said when it was raised, how it stands, and images or responses of then and now."""
    titles = ("the first update", f"update {raised.update}")
    files = [relative(folder.alarms_first.parent / name, folder) for name in raised.sheets]
    text = raised.text
    texts = [f"Update {raised.update}: {text}{'' if text.endswith('.') else '.'}"]
    if raised.over is not None:
        texts.append(f"Over since update {raised.over}.")
    elif raised.kind == "drift" and raised.update < run.updates and raised.before is not None and raised.spread:
        values = [value for row in run.rows if row[STEP] and (value := number(row, raised.metric)) is not None]
        if values:
            now = mean(values[-LAST:])
            far = f"{abs(now - raised.before) / raised.spread:.1f} standard deviations from the start"
            texts.append(f"By update {run.updates} it is {amount(now)}, {far}.")
    return {
        "name": raised.name.replace("_", " "), "texts": texts, "over": raised.over is not None,
        "sheets": [{"title": title, "file": file} for title, file in zip(titles, files, strict=False) if file],
        "quotes": [{"title": title, "said": [
            {"prompt": cut(quote.prompt), "response": cut(quote.response), "reward": quote.reward} for quote in quotes
        ]} for title, quotes in zip(titles, raised.quotes, strict=False)],
    }  # fmt: skip


def signature(folder: RunFolder) -> str:
    """Changes whenever something of a run that is shown has changed."""
    files = [folder.metrics, folder.config, folder.groups, folder.timeline, folder.alarms, folder.path / "validation"]
    newest = max(folder.validations(), default=0)
    files += [folder.validation(newest) / "samples.jsonl", folder.reference / "metrics.json", folder.alarms_actions]
    files.append(folder.path / NOTES)
    return "-".join(f"{value:x}" for value in stamp(*files))


def numbers(run: Summary) -> dict[str, Any]:
    """The table of measures before and after, the watched statistics apart; ``why`` says why there is none."""
    last = run.after or run.before
    if last is None:
        failed = any(row.get("val-aux/missing") == 1 for row in run.rows)
        why = "No reward of any validation could be computed" if failed else "There is no validation yet"
        return {"why": f"{why}, so there is nothing to compare."}
    heads = ["before" if run.after else "before training"] * bool(run.before)
    if run.after:
        heads += [f"after {counted(last[STEP], 'updates')}", *["change"] * bool(run.before)]
    if run.reference is not None:
        twice = ", twice the cost" if run.config.get("rollout", {}).get("guidance_scale") == 1 else ""
        heads.append(f"untrained, guidance {run.reference['guidance_scale']:g}{twice}")
    return {
        "heads": heads, "rows": [_row(run, measure) for measure in run.measures if not measure.watched],
        "watched": [_row(run, measure) for measure in run.measures if measure.watched], "moved": _moved(run),
    }  # fmt: skip


def _moved(run: Summary) -> str:
    """How many statistics were only watched, and which of them have clearly changed; "" without any."""
    watched = [measure for measure in run.measures if measure.watched]
    moved = [one.title for one in watched if (change := run.change(one)) is not None and change.sign]
    clear = f"; clear change: {', '.join(moved)}" if moved else "; none has clearly changed" if run.after else ""
    return f"{counted(len(watched), 'watched statistics')}{clear}" if watched else ""


def _row(run: Summary, measure: Measure) -> dict[str, Any]:
    wanted = {1: "higher is better", -1: "lower is better", 0: measure.about}[measure.better]
    cells = [{"text": measure.show(measure.of(run.before))}] if run.before else []
    if run.after:
        cells += [{"text": measure.show(measure.of(run.after)), "kind": "now"}]
        cells += [_change(run.change(measure))] if run.before else []
    if run.reference is not None:
        cells.append({"text": measure.show(measure.of(run.reference))})
    return {"title": measure.title, "note": wanted, "cells": cells}


def _change(change: Change | None) -> dict[str, str]:
    if change is None:
        return {"text": "–"}
    number, interval = change.shown()
    words = [f"±{SPACE}{interval}"] if interval else ["too few prompts"] if change.chance == math.inf else []
    words += ["points"] if change.measure.percent and change.chance != math.inf else []
    kind, says = {1: ("good", "better"), -1: ("bad", "worse"), 0: ("", "")}[change.sign * change.measure.better]
    if interval and not change.sign:
        may_be_chance = abs(change.after - change.before) <= change.chance
        says = "no clear change" if may_be_chance else "too little to matter"
    return {"text": number, "note": ", ".join(filter(None, [" ".join(words), says])), "kind": kind}


def sources(run: Summary) -> dict[str, Any] | None:
    """Reward and strictest measure of each data source, if there are several."""
    if run.before is None or run.after is None:
        return None
    head, tail = REWARD.key.removesuffix("*").split("*")
    names = [
        name.removeprefix(head).rpartition(tail)[0] for name in run.after if name.startswith(head) and tail in name
    ]
    if len(names) < 2:
        return None
    measures = [measure for measure in run.measures if measure.key in (REWARD.key, run.exact.key)]
    heads = [head for measure in measures for head in (f"{measure.title}, before", "after")]
    rows = []
    for source in names:
        cells = []
        for measure in measures:
            own = replace(measure, key=measure.key.replace("*", source, 1))
            cells += [{"text": own.show(own.of(run.before))}, {"text": own.show(own.of(run.after)), "kind": "now"}]
        rows.append({"title": source, "cells": cells})
    return {"heads": heads, "rows": rows}


SUITES_ABOUT = (
    "Means over the same prompts with the same noise. Brackets hold 95 % of the bootstrap over prompts; changes are "
    "paired by prompt."
)


def suite_data(folder: RunFolder) -> list[dict[str, Any]]:
    """What a page shows of each suite: the first and the last evaluation, the change between them, and a curve."""
    places: defaultdict[str, dict[int, Path]] = defaultdict(dict)
    for place in sorted(folder.path.glob(f"validation/[0-9]*/{SUITES}/*")):
        outside = any(leads_out(place / name, folder.path) for name in (HEADER, RECORDS))
        if place.parents[1].name.isdecimal() and not outside:
            places[place.name][int(place.parents[1].name)] = place
    suites = [
        {update: one for update in chosen(list(by_update), MOST_SCORED) if (one := _read(by_update[update]))}
        for _, by_update in sorted(places.items())
    ]
    return [_table(evaluations) for evaluations in suites if evaluations]


@cached(lambda place: stamp(place / HEADER, place / RECORDS))
def _read(place: Path) -> Evaluation | None:
    """What is there; None where it is not complete, or was not written by a run."""
    try:
        return Evaluation.read(place)
    except (UserError, TypeError, ValueError, ArithmeticError):
        return None


def _table(evaluations: Mapping[int, Evaluation]) -> dict[str, Any]:
    """Those that can be compared with the last one."""
    last = evaluations[max(evaluations)]
    alike = attrgetter("version", "primary_metric", "aggregation", "n", "prompts_digest", "digest")
    by_update = {update: one for update, one in evaluations.items() if alike(one.header) == alike(last.header)}
    ends = sorted({min(by_update), max(by_update)})
    header, sides = last.header, [by_update[update] for update in ends]
    values = [one.result["overall"] for one in by_update.values()]
    intervals = [None if value["low"] is None else (value["low"], value["high"]) for value in values]
    points = [(update, value["value"]) for update, value in zip(by_update, values, strict=True)]
    changed = f", changed: {', '.join(header.changed)}" if header.changed else ""
    return {
        "name": header.suite, "note": f"{header.primary_metric}, {header.prompts} prompts × {header.n}{changed}",
        "doubts": [f"Not to be believed: {why}" for why in
                   dict.fromkeys(reason for side in sides for reason in side.result["why_not"])],
        "heads": [*(f"after {counted(update, 'updates')}" for update in ends), *["change"] * (len(ends) > 1)],
        "rows": _rows(sides),
        "series": series("validation", "validation", points, intervals) if len(points) > 1 else None,
    }  # fmt: skip


def _rows(sides: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Values of each evaluation, then the change: overall, and by task."""
    first, last = sides[0], sides[-1]
    moved = changes(first, last) if len(sides) > 1 else {}
    rows = []
    for name in ["overall", *(first.result["tasks"] if len(first.result["tasks"]) > 1 else [])]:
        values = [{"overall": side.result["overall"], **side.result["tasks"]}.get(name, {}) for side in sides]
        cells = [*map(_cell, values), *([_cell(moved[name], "+")] if name in moved else [])]
        rows.append({"title": name, "cells": cells})
    return rows


def _cell(values: Mapping[str, Any], sign: str = "") -> dict[str, str]:
    text, interval = (words.replace("-", "−") for words in shown(values, f"{sign}.3f"))
    return {"text": text} | ({"note": interval} if interval else {})
