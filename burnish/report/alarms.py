"""The alarms of a run for a page: what was said, how it stands now, and pictures or responses of then and now."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from burnish.alarms.base import amount, number
from burnish.alarms.record import Raised
from burnish.alarms.rule import LAST
from burnish.config.run_folder import STEP, RunFolder
from burnish.report.media import Embedded
from burnish.report.summary import Summary
from burnish.report.validated import relative
from burnish.types.response_stats import Quote

ABOUT = (
    "An alarm says that something has moved, not that it is bad, and a run without alarms is not thereby a good one: "
    "look whether this is what you want."
)
TITLE = "Alarms"


def alarm_data(folder: RunFolder, run: Summary) -> list[dict[str, Any]]:
    """Alarms as plain data, those that stand first."""
    return [_data(folder, run, one) for one in in_order(run)]


def in_order(run: Summary) -> list[Raised]:
    """Those that stand, then those that are over, as they were raised."""
    return sorted(run.alarms, key=lambda one: one.over is not None)


def alarms_section(folder: RunFolder, run: Summary, show: Embedded) -> str:
    """HTML; "" without alarms."""
    cards = []
    for one in in_order(run):
        sides = "".join(
            f"<div><h4>{title}</h4>{show(file, one.name)}</div>"
            for title, name in zip(_titles(one), one.sheets, strict=False)
            if (file := folder.alarms_first.parent / name).is_file()
        )
        said = "".join(
            f"<div><h4>{title}</h4><dl>{''.join(map(_quoted, quotes))}</dl></div>"
            for title, quotes in zip(_titles(one), one.quotes, strict=False)
        )
        shown = "".join(f'<div class="sides">{some}</div>' for some in (sides, said) if some)
        lines = "".join(f"<p>{escape(text)}</p>" for text in sentences(run, one))
        cards.append(f'<section class="card"><h3>{escape(title_of(one))}</h3>{lines}{shown}</section>')
    return f"<h2>{TITLE}</h2><p>{ABOUT}</p>{''.join(cards)}" if cards else ""


def title_of(one: Raised) -> str:
    """The name of an alarm, to be read."""
    return one.name.replace("_", " ")


def sentences(run: Summary, one: Raised) -> list[str]:
    """What was said when it was raised, and how it stands."""
    text = one.alarm.text
    found = [f"Update {one.update}: {text}{'' if text.endswith('.') else '.'}"]
    if one.over is not None:
        return [*found, f"Over since update {one.over}."]
    if one.alarm.metric and one.alarm.kind == "drift" and one.update < run.updates:
        found += _now(run, one)
    return found


def _now(run: Summary, one: Raised) -> list[str]:
    """Where the mean of a statistic is by the last updates."""
    values = [number(row, one.alarm.metric) for row in run.rows if row[STEP] > 0]
    last = [value for value in values if value is not None][-LAST:]
    if not last or one.alarm.before is None or not one.alarm.spread:
        return []
    now = math.fsum(last) / len(last)
    spreads = abs(now - one.alarm.before) / one.alarm.spread
    return [f"By update {run.updates} it is {amount(now)}, {spreads:.1f} standard deviations from the start."]


def _titles(one: Raised) -> tuple[str, str]:
    return ("the first update", f"update {one.update}")


def _quoted(quote: Quote) -> str:
    reward = "no reward" if quote.reward is None else f"reward {amount(quote.reward)}"
    said = escape(quote.response) if quote.response.strip() else "<i>nothing</i>"
    return f"<dt>{escape(quote.prompt)} <small>{reward}</small></dt><dd>{said}</dd>"


def _data(folder: RunFolder, run: Summary, one: Raised) -> dict[str, Any]:
    places = zip(_titles(one), one.sheets, strict=False)
    sheets = [(title, relative(folder.alarms_first.parent / name, folder)) for title, name in places]
    said = zip(_titles(one), one.quotes, strict=False)
    return {
        "name": title_of(one), "texts": sentences(run, one), "over": one.over is not None,
        "sheets": [{"title": title, "file": file} for title, file in sheets if file],
        "quotes": [{"title": title, "said": [vars(quote) for quote in quotes]} for title, quotes in said],
    }  # fmt: skip
