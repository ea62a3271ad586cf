"""What a run came to, as plain data: numbers before and after, sentences, warnings, what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from burnish.config.run_folder import STEP, RunFolder
from burnish.report.alarms import ABOUT, alarm_data
from burnish.report.gallery import CHOSEN, first_samples
from burnish.report.measures import PLUS_MINUS, REWARD, SPACE, Measure
from burnish.report.run_list import stamp
from burnish.report.suites import ABOUT as SUITES_ABOUT
from burnish.report.suites import suite_data
from burnish.report.summary import Summary, next_steps
from burnish.report.validated import asked_data, sample_data
from burnish.report.verdict import headline, verdict

WORDS = {
    "gained": ("good", "+ gained"),
    "kept": ("good", "= kept"),
    "lost": ("bad", "− lost"),
    "weigh": ("", "to weigh"),
}
LONGEST = 1 << 20  # characters of a configuration


def overview(folder: RunFolder, run: Summary, evaluated: Iterable[Path] = ()) -> dict[str, Any]:
    """Everything but curves, samples and prompts; ``evaluated`` are folders that may be evaluations of the run."""
    return {
        "title": folder.path.resolve().name, "sentence": run.sentence(), "headline": headline(run),
        "glimpse": glimpse(folder, run), "chosen": CHOSEN, "same": run.words.same,
        "numbers": numbers(run), "sources": sources(run),
        "verdict": [{"kind": WORDS[one.kind][0], "word": WORDS[one.kind][1], "text": one.text} for one in verdict(run)],
        "warnings": run.warnings(), "alarms": alarm_data(folder, run), "alarms_about": ABOUT,
        "suites": suite_data(folder, evaluated), "suites_about": SUITES_ABOUT,
        "updates": run.updates, "steps": run.planned, "samples": run.words.samples, "gallery": run.words.gallery,
        "unit": run.words.unit, "validations": folder.validations(),
        "config": folder.config.read_text(encoding="utf-8")[:LONGEST] if folder.config.is_file() else "",
        "next": [{"what": what, "command": command} for what, command in next_steps(folder, run)],
    }  # fmt: skip


def glimpse(folder: RunFolder, run: Summary) -> list[dict[str, Any]]:
    """The first sample of the first prompts before and after, each with the title of its side."""
    found = []
    for index, pair in first_samples(folder, run):
        sides = [{"title": title} | sample_data(folder, (index, number), one) for title, number, one in pair]
        found.append(asked_data(folder, pair[-1][2]) | {"index": index, "sides": sides})
    return found


def signature(folder: RunFolder) -> str:
    """Changes whenever something of a run that is shown has changed."""
    files = [folder.metrics, folder.config, folder.groups, folder.timeline, folder.alarms, folder.path / "validation"]
    newest = max(folder.validations(), default=0)
    files += [folder.validation(newest) / "samples.jsonl", folder.reference / "metrics.json"]
    return "-".join(f"{changed:x}.{size:x}" for changed, size in map(stamp, files))


def numbers(run: Summary) -> dict[str, Any]:
    """The table of measures before and after, the watched statistics apart; ``why`` says why there is none."""
    last = run.after or run.before
    if last is None and any(row.get("val-aux/missing") == 1 for row in run.rows):
        return {"why": "No reward of any validation could be computed, so there is nothing to compare."}
    if last is None:
        return {"why": "There is no validation yet, so there is nothing to compare."}
    heads = ["before", f"after {last[STEP]} updates", "change"] if run.after else ["before training"]
    if run.reference is not None:
        twice = ", twice the cost" if run.config.get("rollout", {}).get("guidance_scale") == 1 else ""
        heads.append(f"untrained, guidance {run.reference['guidance_scale']:g}{twice}")
    measures = run.measures()
    return {
        "heads": heads, "rows": [_row(run, measure) for measure in measures if not measure.watched],
        "watched": [_row(run, measure) for measure in measures if measure.watched], "moved": _moved(run, measures),
    }  # fmt: skip


def _moved(run: Summary, measures: Iterable[Measure]) -> str:
    """How many statistics were only watched, and which of them have clearly changed; "" without any."""
    watched = [measure for measure in measures if measure.watched]
    pairs = [(one, one.of(run.before), one.of(run.after)) for one in watched]
    moved = [one.title for one, a, b in pairs if a is not None and b is not None and one.sign(a, b)]
    clear = f"; clear change: {', '.join(moved)}" if moved else "; none has clearly changed" if run.after else ""
    return f"{len(watched)} watched statistic{'s' * (len(watched) > 1)}{clear}" if watched else ""


def _row(run: Summary, measure: Measure) -> dict[str, Any]:
    wanted = {1: "higher is better", -1: "lower is better", 0: measure.about}[measure.better]
    cells = [{"text": measure.show(measure.of(run.before))}]
    if run.after:
        before, after = measure.of(run.before), measure.of(run.after)
        cells += [{"text": measure.show(after), "kind": "now"}, _change(measure, before, after)]
    if run.reference is not None:
        cells.append({"text": measure.show(measure.of(run.reference))})
    return {"title": measure.title, "note": wanted, "cells": cells}


def _change(measure: Measure, before: float | None, after: float | None) -> dict[str, str]:
    if before is None or after is None:
        return {"text": "–"}
    sign = measure.sign(before, after)
    way = sign * measure.better
    kind = {1: "good", -1: "bad", 0: ""}[way]
    number, _, chance = measure.change(before, after).removesuffix(f"{SPACE}points").partition(PLUS_MINUS)
    words = [f"±{SPACE}{chance}"] if chance else ["too few prompts"] if measure.chance == math.inf else []
    words += ["points"] if measure.percent and measure.chance != math.inf else []
    text = " ".join(words)
    if sign:
        text += {1: ", better", -1: ", worse", 0: ""}[way]
    elif chance:
        text += ", no clear change" if abs(after - before) <= measure.chance else ", too little to matter"
    return {"text": number, "note": text.removeprefix(", "), "kind": kind}


def sources(run: Summary) -> dict[str, Any] | None:
    """Reward and strictest measure of each data source, if there are several."""
    names = run.sources()
    if len(names) < 2 or run.before is None or run.after is None:
        return None
    measures = [one for one in run.measures() if one.key in (REWARD.key, run.exact.key)]
    heads = [head for measure in measures for head in (f"{measure.title}, before", "after")]
    rows = []
    for source in names:
        own = [replace(measure, key=measure.key.replace("*", source, 1)) for measure in measures]
        cells = [
            cell
            for measure in own
            for cell in (
                {"text": measure.show(measure.of(run.before))},
                {"text": measure.show(measure.of(run.after)), "kind": "now"},
            )
        ]
        rows.append({"title": source, "cells": cells})
    return {"heads": heads, "rows": rows}
