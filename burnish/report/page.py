"""The HTML page, with style and images embedded."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from burnish import __version__
from burnish.config.run_folder import RunFolder
from burnish.report.alarms import alarms_section
from burnish.report.charts import trained_key
from burnish.report.curves import Chart, Series
from burnish.report.frozen import digest, frozen
from burnish.report.gallery import gallery
from burnish.report.health import health, points_of
from burnish.report.measures import REWARD
from burnish.report.media import Embedded
from burnish.report.overview import WORDS, numbers, sources
from burnish.report.suites import suites_section
from burnish.report.summary import Summary, next_steps
from burnish.report.verdict import headline, verdict
from burnish.report.web import script, style
from burnish.utils.disk import write_atomically

PARTS = {
    "reward": "Waiting for rewards",
    "old_log_prob": "Old log-probs",
    "ref": "Reference log-probs",
    "values": "Value network",
    "adv": "Advantages",
    "update_actor": "Policy update",
    "publish": "Weight sync",
}


def write_report(folder: RunFolder) -> Path:
    """Write report.html from the files of a run, finished or not: text to read, and the same page as the board's."""
    run, show = Summary.read(folder), Embedded(folder.path)
    name = escape(folder.path.resolve().name)
    parts = [
        f"<h1>{name}</h1>",
        f'<p class="lead">{escape(run.sentence())}</p>',
        _warnings(run),
        f'<p class="headline">{escape(headline(run))}</p>' if headline(run) else "",
        f'<div class="first"><div>{gallery(folder, run, show)}</div>{_verdict(run)}</div>',
        _numbers(run),
        _by_source(run),
        _curves(run),
        suites_section(folder),
        alarms_section(folder, run, show),
        _details("Health of the training", health(run, {trained_key(measure) for measure in run.measures()})),
        _details("Where the time goes", _time(run)),
        _details("Configuration", _configuration(folder)),
        _next(folder, run),
    ]
    footer = (
        f"<footer>Written by Burnish {__version__} from the files in this folder; <code>burnish report</code> writes "
        "it anew, and <code>burnish board</code> follows the run.</footer>"
    )
    policy = "default-src 'none'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'; " + (
        f"style-src {digest(style())}; script-src {digest(script())}"
    )
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name} – Burnish</title><style>{style()}</style></head>\n"
        f'<body>\n<div id="written">{chr(10).join(part for part in parts if part)}</div>\n'
        f'<script type="application/json" id="frozen">{frozen(folder, run)}</script>\n'
        f"<script>{script()}</script>\n{footer}</body></html>\n"
    )
    write_atomically(folder.report, page.encode())
    return folder.report


def _numbers(run: Summary) -> str:
    found = numbers(run)
    if "why" in found:
        return f"<p>{escape(found['why'])}</p>"
    watched = _table("numbers", found | {"rows": found["watched"]})
    return _table("numbers", found) + (_details(found["moved"], watched) if found["watched"] else "")


def _by_source(run: Summary) -> str:
    """Reward and strictest measure of each data source, if there are several."""
    found = sources(run)
    if found is None:
        return ""
    about = "<p>The numbers above are means over these, each counted alike.</p>"
    return f"<h2>By data source</h2>{about}{_table('sources', found)}"


def _table(kind: str, found: dict[str, Any]) -> str:
    head = "".join(f'<th class="n">{escape(text)}</th>' for text in found["heads"])
    rows = "".join(
        f"<tr><td>{escape(row['title'])}{_small(row)}</td>{''.join(map(_cell, row['cells']))}</tr>"
        for row in found["rows"]
    )
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(cell: dict[str, str]) -> str:
    return f'<td class="n {cell.get("kind", "")}">{escape(cell["text"])}{_small(cell)}</td>'


def _small(one: dict[str, Any]) -> str:
    return f"<small>{escape(one['note'])}</small>" if one.get("note") else ""


def _verdict(run: Summary) -> str:
    items = []
    for point in verdict(run):
        kind, word = WORDS[point.kind]
        items.append(f'<li><b class="{kind}">{word}</b><span>{escape(point.text)}</span></li>')
    return f'<ul class="verdict">{"".join(items)}</ul>' if items else ""


def _warnings(run: Summary) -> str:
    lines = "".join(f"<p>{escape(text)}</p>" for text in run.warnings())
    return f'<div class="warning">{lines}</div>' if lines else ""


def _curves(run: Summary) -> str:
    charts = []
    for measure in run.measures():
        reached = measure.of(run.reference)
        guided = None
        if run.reference is not None and reached is not None:
            guided = (f"untrained, guidance {run.reference['guidance_scale']:g}", reached)
        lines = [Series("validation", "validation", points_of(run, measure.key), dots=True)]
        trained = "critic/rewards/mean" if measure.key == REWARD.key else trained_key(measure)
        if trained:
            lines.insert(0, Series("training", "training", points_of(run, trained)))
        # a minimal range, so that a negligible change does not look large
        span = 0.0 if measure.relative else 4 * measure.enough
        title = "Reward" if measure.key == REWARD.key else measure.title
        charts.append(Chart(title, lines, run.updates, guided, measure.percent, span, measure.relative).html())
    if not charts and (points := points_of(run, "critic/rewards/mean")):
        charts = [Chart("Reward", [Series("training", "training", points)], run.updates).html()]
    if not any(charts):
        return ""
    return f'<h2>Over the policy updates</h2><div class="charts">{"".join(charts)}</div>'


def _time(run: Summary) -> str:
    rows = [row for row in run.rows if row.get("timing_s/step")]
    if not rows:
        return ""
    step = sum(row["timing_s/step"] for row in rows) / len(rows)
    seconds = {
        title: sum(row.get(f"timing_s/{name}") or 0 for row in rows) / len(rows)
        for name, title in ({"gen": run.words.gen} | PARTS).items()
    }
    seconds["Everything else"] = max(0.0, step - sum(seconds.values()))
    lines = "".join(
        f'<tr><td>{title}</td><td class="n">{value:.3f} s</td><td class="n">{100 * value / step:.0f} %</td>'
        f'<td class="wide"><svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="fill c0" width="{100 * value / step:.1f}" height="8"/></svg></td></tr>'
        for title, value in seconds.items()
        if value > 0
    )
    speed = [row["perf/throughput"] for row in rows if row.get("perf/throughput")]
    pace = f", {sum(speed) / len(speed):.1f} {run.words.unit} per second" if speed else ""
    return f'<p>An update takes {step:.2f} s on average{pace}.</p><table class="parts"><tbody>{lines}</tbody></table>'


def _configuration(folder: RunFolder) -> str:
    if not folder.config.exists():
        return ""
    return f"<pre>{escape(folder.config.read_text(encoding='utf-8'))}</pre>"


def _next(folder: RunFolder, run: Summary) -> str:
    lines = "\n".join(f"{command}    # {what}" for what, command in next_steps(folder, run))
    return f"<h2>Next steps</h2><pre>{escape(lines)}</pre>"


def _details(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>" if content else ""
