"""burnish runs and burnish compare: what is in a folder of runs, and in what some of them differ."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from burnish.config.run_folder import RunFolder
from burnish.report.runs import configuration, differences, find_runs, flat, other_rewards, run_row
from burnish.report.summary import Summary
from burnish.utils import terminal
from burnish.utils.errors import UserError
from burnish.utils.reading import checked_path


def runs(folder: str) -> int:
    """Print a table of the runs below a folder, those that run first."""
    from rich.table import Table

    root = checked_path(folder, "FOLDER")
    if not root.is_dir():
        raise UserError(f"FOLDER is {folder}, which is no folder; give the one in which runs are, such as runs")
    found = [run_row(name, path) for name, path in find_runs(root)[0].items()]
    if not found:
        raise UserError(f"FOLDER is {folder}, in which there is no run; give the one in which runs are")
    table = Table(box=None, pad_edge=False)
    for title, justify in (("run", "left"), ("state", "left"), ("updates", "right"), ("best", "right"),
                           ("at", "right"), ("now", "right"), ("took", "right"), ("last change", "left")):  # fmt: skip
        table.add_column(title, justify=justify, no_wrap=title not in ("run",), overflow="fold")  # type: ignore[arg-type]
    for row in sorted(found, key=lambda row: (row["state"] != "running", -row["changed"])):
        table.add_row(*_cells(row))
    terminal.console(highlight=False).print(table)
    return 0


def _cells(row: dict[str, Any]) -> list[Any]:
    from rich.text import Text

    best = row["best"] or {"reward": None, "update": "–"}
    changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["changed"])) if row["changed"] else "–"
    state = "unreadable configuration" if row["error"] else row["state"]
    return [
        Text(row["name"]), state, f"{row['updates']}/{row['steps']}", _reward(best["reward"]), str(best["update"]),
        _reward(row["last"]), _took(row["seconds"]), changed,
    ]  # fmt: skip


def _reward(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _listed(changed: Sequence[dict[str, Any]], place: int) -> str:
    return ", ".join(f"{one['option']}={one['values'][place]}" for one in changed)


def _took(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def compare(first: str, others: Sequence[str]) -> int:
    """Print measures of runs side by side, and the options in which they differ."""
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys([first, *others]))
    if len(names) < 2:
        raise UserError("compare needs two different runs; give the folders of some")
    folders = []
    for name in names:
        folders.append(folder := RunFolder.of_run(name))
        if error := configuration(folder).get("error"):
            raise UserError(error)
    console = terminal.console(highlight=False)
    summaries = [Summary.read(folder) for folder in folders]
    table = Table(box=None, pad_edge=False)
    for title in ("", *names):
        table.add_column(Text(title), justify="right" if title else "left", overflow="fold")
    table.add_row("updates", *(f"{run.updates}/{run.planned}" for run in summaries))
    table.add_row("time of updates", *(_took(run.seconds) for run in summaries))
    measures = {one.key: one for run in summaries for one in run.measures() if not one.watched}
    for measure in measures.values():
        values = [(measure.of(run.before), measure.of(run.after)) for run in summaries]
        shown = [f"{measure.show(before)} → {measure.show(after)}" for before, after in values]
        table.add_row(Text(measure.title), *shown)
    console.print(table)
    configurations = {name: flat(configuration(folder)) for name, folder in zip(names, folders, strict=True)}
    if warning := other_rewards(configurations):
        console.print(Text(f"\n{warning}", "yellow"))
    changed = differences(configurations)
    console.print("\nOptions that differ:" if changed else "\nAll options are the same.")
    options = Table(box=None, pad_edge=False)
    for title in ("", *names):
        options.add_column(Text(title), overflow="fold")
    shared = [one for one in changed if None not in one["values"]]
    for one in shared:
        options.add_row(Text(one["option"]), *(Text(value) for value in one["values"]))
    if shared:
        console.print(options)
    for place, name in enumerate(names):
        own = [one for one in changed if None in one["values"] and one["values"][place] is not None]
        if own:
            console.print(Text("\nOnly in ").append(f"{name}: ", "bold").append(_listed(own, place)))
    return 0
