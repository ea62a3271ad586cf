"""Every curve of a run as plain data, in the sections in which a page shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from burnish.config.run_folder import RunFolder
from burnish.report.health import PARTS, explained, points_of
from burnish.report.measures import REWARD, Measure
from burnish.report.points import MOST, Interval, Points, series
from burnish.report.summary import Summary
from burnish.report.validated import MOST_SCORED, by_source, chosen, over_sources, scores_of

VALIDATION, WATCHED, MEMORY, REST = "Validation", "Watched statistics", "Memory", "Other metrics"
SECTIONS = {"timing_s/": "Seconds by phase", "perf/": "Speed", "pipeline/": "Pipeline", "reward/": "Scoring",
            "train/": "Sampling", "timing_per_": "Time per sample"}  # fmt: skip
MOST_CHARTS = 1000


def charts(folder: RunFolder, run: Summary, *, most: int = MOST) -> dict[str, Any]:
    """Charts in order; ``most`` points of a line."""
    found = list(_validation(folder, run, most))
    shown = {REWARD.key, "critic/rewards/mean"}
    shown |= {trained_key(measure) for measure in run.measures()} - {""}
    rewards = points_of(run, "critic/rewards/mean")
    constant: dict[str, float] = {}
    alike: dict[tuple[tuple[int, float | None], ...], dict[str, Any]] = {}
    for name in _names(run):
        points = points_of(run, name)
        values = {value for _, value in points}
        if name in shown or not points or (points == rewards and name.startswith("critic/")):
            continue
        if len(values) == 1 and len(points) > 1:
            constant[name] = points[0][1] or 0.0
        elif (key := tuple(points)) in alike:  # a metric under several names is one chart
            alike[key]["also"].append(name)
        else:
            line = series("training", "training", points, most=most)
            alike[key] = {"title": name, "part": _part(name), "note": explained(name), "also": [], "series": [line]}
    found += list(alike.values())[: MOST_CHARTS - len(found)]
    order = [VALIDATION, WATCHED, *PARTS.values(), MEMORY, *SECTIONS.values(), REST]
    found.sort(key=lambda chart: order.index(chart["part"]))
    return {"last": run.updates, "charts": found, "constant": constant}


def _names(run: Summary) -> list[str]:
    names = {name for row in run.rows for name in row}
    return sorted(name for name in names if not name.startswith(("val-", "training/")))


def _part(name: str) -> str:
    if "memory" in name or "_gb" in name:
        return MEMORY
    return next((title for start, title in (PARTS | SECTIONS).items() if name.startswith(start)), REST)


def trained_key(measure: Measure) -> str:
    """The metric of training that a measure of validations belongs to; "" if there is none."""
    parts = measure.key.split("/")
    return f"critic/{parts[2]}/mean" if len(parts) == 4 else ""


def _validation(folder: RunFolder, run: Summary, most: int) -> Iterator[dict[str, Any]]:
    updates = chosen(folder.validations(), MOST_SCORED)
    for measure in run.measures():
        reward = measure.key == REWARD.key
        reached = measure.of(run.reference)
        chart: dict[str, Any] = {
            "title": "Reward" if reward else measure.title, "note": measure.about, "also": [],
            "part": WATCHED if measure.watched else VALIDATION,
            "percent": measure.percent, "zero": measure.relative, "key": measure.key,
            "span": 0.0 if measure.relative else 4 * measure.enough,
        }  # fmt: skip
        if run.reference is not None and reached is not None:
            chart["reference"] = {"name": f"untrained, guidance {run.reference['guidance_scale']:g}", "y": reached}
        found = {update: by_source(scores_of(folder, update), measure.column) for update in updates}
        lines = [series("validation", "validation", *_over(run, measure, found), most=most)]
        trained = "critic/rewards/mean" if reward else trained_key(measure)
        if trained and (points := points_of(run, trained)):
            lines.insert(0, series("training", "training", points, most=most))
        chart["series"] = lines
        names = list(dict.fromkeys(source for one in found.values() for source in one))
        if len(names) > 1:
            chart["sources"] = [
                series(name, "source", *_of(found, name), most=most) for name in names[:12]
            ]  # fmt: skip
        yield chart
    if not run.measures() and (points := points_of(run, "critic/rewards/mean")):
        line = series("training", "training", points, most=most)
        yield {"title": "Reward", "part": VALIDATION, "note": "", "also": [], "series": [line]}


def _over(
    run: Summary, measure: Measure, found: dict[int, dict[str, tuple[float, Interval]]]
) -> tuple[Points, list[Interval]]:
    """The metric as it was logged, with the interval that the scores give."""
    points = points_of(run, measure.key)
    intervals: list[Interval] = []
    for update, value in points:
        one = over_sources(found.get(update, {}))
        half = None if one is None or one[1] is None else one[1][1] - one[0]
        intervals.append(None if half is None or value is None else (value - half, value + half))
    return points, intervals


def _of(found: dict[int, dict[str, tuple[float, Interval]]], name: str) -> tuple[Points, Sequence[Interval]]:
    known = [(update, one[name]) for update, one in found.items() if name in one]
    return [(update, value) for update, (value, _) in known], [interval for _, (_, interval) in known]
