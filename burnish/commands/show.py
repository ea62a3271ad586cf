"""What there is to look at: recipes and their options, runs in a folder, their measures, the report of one."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from burnish.commands.prepare import hardware_complaint, has_driver
from burnish.config import describe, load
from burnish.config.disk import disk_problems
from burnish.config.hardware import listed, made_for, read_machine
from burnish.config.load import BASE, find_recipe, hardware_of, recipe_names
from burnish.config.run_folder import RunFolder
from burnish.config.yaml_text import parse
from burnish.utils import terminal
from burnish.utils.errors import UserError
from burnish.utils.paths import RECIPES
from burnish.utils.reading import checked_path

WIDTH = 80  # of what is explained


def config(recipe: str, overrides: Sequence[str] = (), *, changed: bool = False) -> int:
    """Show every option of a run, explained.

    It also lists what keeps the run from starting on this machine, such as files that are missing.

    Examples:
        burnish config quickstart                             every option, explained; non-default values are marked
        burnish config quickstart algorithm=flow_grpo
        burnish config quickstart rollout data                the options of these sections
        burnish config quickstart --changed                   those that differ from their default
        burnish config quickstart rollout.n=16 > mine.yaml    the output is a recipe: burnish train mine.yaml

    Args:
        recipe: name of a recipe (burnish recipes) or path of a .yaml file
        overrides (SECTION|OPTION=VALUE): sections that are shown, and options of the run as section.option=value
        changed: only options that differ from their default
    """
    sections = [word for word in overrides if "=" not in word]
    options = [word for word in overrides if "=" in word]
    resolved = load(recipe, options)
    console = terminal.console(highlight=False)
    lines = describe(resolved, " ".join([recipe, *options])).splitlines()
    for line in _selected(lines[2:], sections, changed) if sections or changed else lines:
        _print_option(console, line)
    # what follows is no part of a recipe; missing files are no error, since it is read before its model is fetched
    if (stated := hardware_of(recipe)) and read_machine(options)[0].gpus is None:
        console.print(Text(f"\n# {made_for(recipe, stated)}", "dim"), soft_wrap=True)
    lacking = None if has_driver() else hardware_complaint(resolved)  # to count GPUs, PyTorch has to be loaded
    problems = [*([lacking] if lacking else []), *disk_problems(resolved, reads=False)]
    if problems:
        console.print(Text("\n# Before burnish train can start here:", "bold yellow"), soft_wrap=True)
    for problem in problems:
        console.print(Text(f"#   - {' '.join(problem.split())}", "yellow"), soft_wrap=True)
    return 0


def _selected(lines: Sequence[str], sections: Sequence[str], changed: bool) -> Iterator[str]:
    """The lines of a configuration that are asked for, each below the names of its sections."""
    above: dict[int, tuple[str, str]] = {}  # by indent: name and line
    printed: set[str] = set()
    paths: set[str] = set()
    note = ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line[indent] == "#":
            note = line
            continue
        above = {place: one for place, one in above.items() if place < indent}
        above[indent] = line[indent:].partition(":")[0], line
        path = ".".join(name for name, _ in above.values())
        paths.add(path)
        wanted = not sections or any(f"{path}.".startswith(f"{section}.") for section in sections)
        if wanted and (not changed or "[default " in note + line):
            yield from (one for _, one in list(above.values())[:-1] if one not in printed)
            yield from filter(None, [note, line])
            printed.update(one for _, one in above.values())
        note = ""
    if missing := [section for section in sections if section not in paths]:
        raise UserError(f"{missing[0]} is no section of this run; burnish config RECIPE shows all")


def _print_option(console: Console, line: str) -> None:
    """Print an option with its explanation, in lines of 80 columns."""
    indent = len(line) - len(line.lstrip())
    option, mark, words = (
        (line[:indent], "# ", line[indent + 2 :]) if line[indent:].startswith("# ") else line.partition("  # ")
    )
    bold = "bold green" if words.startswith("[default ") else ""
    for number, part in enumerate(textwrap.wrap(words, max(WIDTH - len(option) - len(mark), 30)) or [""]):
        text = " " * len(option) if number else option
        console.print(Text.assemble((text, bold), (mark + part, "dim")), soft_wrap=True)


def recipes(word: str = "") -> int:
    """List the recipes that ship with Burnish.

    Examples:
        burnish recipes
        burnish recipes qwen                                  those with this word in their name or description
        burnish config quickstart > mine.yaml && burnish train mine.yaml    start from one of them

    Args:
        word: part of a name or description
    """
    console = terminal.console()
    wanted = [one for one in recipe_names() if word.lower() in f"{one} {_description(find_recipe(one))}".lower()]
    if not wanted:
        raise UserError(f"no recipe has {word!r} in its name or description; burnish recipes lists all")
    names = sorted(wanted, key=lambda name: (name.count("/"), name))
    width = max(map(len, names))
    for folder, group in groupby(names, key=lambda name: name.rpartition("/")[0]):
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(min_width=width, no_wrap=True)
        for name in group:
            path = find_recipe(name)
            needs = f" ({listed(stated)})" if (stated := hardware_of(name)) else ""
            table.add_row(
                name, Text(_description(path)) + Text(needs, style="dim") + Text(_lacking(path), style="yellow")
            )
        if folder:
            base = RECIPES / folder / f"{BASE}.yaml"
            console.print(Text(f"\n{_description(base) if base.is_file() else folder}", style="bold"))
        console.print(table)
    console.print(Text("\nburnish config RECIPE explains a recipe, and lists what it needs before it can be trained."))
    return 0


def _description(path: Path) -> str:
    """The first comment of a recipe."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix("#").strip() for line in lines if line.startswith("#")), "")


def _lacking(path: Path) -> str:
    """Reward functions that the user has to write for a recipe."""
    rewards = parse(path.read_text(encoding="utf-8")).get("rewards") or {}
    written = [label for label, reward in rewards.items() if reward.get("name") == "function"]
    return f" (reward to write: {', '.join(written)})" if written else ""


def runs(folder: str = "runs") -> int:
    """List the runs in a folder.

    Examples:
        burnish runs            state, best validation, when and how long, of every run below runs
        burnish runs elsewhere

    Args:
        folder: where runs are
    """
    from burnish.report.runs import find_runs, run_row

    root = checked_path(folder, "FOLDER")
    if not root.is_dir():
        raise UserError(f"FOLDER is {folder}, which is no folder; give the one in which runs are, such as runs")
    rows = [run_row(name, path) for name, path in find_runs(root).items()]
    if not rows:
        raise UserError(f"FOLDER is {folder}, in which there is no run; give the one in which runs are")
    table = Table(box=None, pad_edge=False)
    for title, justify in (("run", "left"), ("state", "left"), ("updates", "right"), ("best", "right"),
                           ("at", "right"), ("now", "right"), ("took", "right"), ("last change", "left")):  # fmt: skip
        table.add_column(title, justify=justify, no_wrap=title != "run", overflow="fold")  # type: ignore[arg-type]
    for row in sorted(rows, key=lambda row: (row["state"] != "running", -row["changed"])):
        best = row["best"] or {"reward": None, "update": "–"}
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["changed"])) if row["changed"] else "–"
        highest, last = ("–" if value is None else f"{value:.3f}" for value in (best["reward"], row["last"]))
        table.add_row(
            Text(row["name"]), "unreadable configuration" if row["error"] else row["state"],
            f"{row['updates']}/{row['steps']}", highest, str(best["update"]), last,
            terminal.duration(row["seconds"]), changed,
        )  # fmt: skip
    terminal.console(highlight=False).print(table)
    return 0


def compare(first: str, others: Sequence[str]) -> int:
    """Compare runs: measures and options.

    Examples:
        burnish compare runs/a runs/b         measures before and after, and the options that differ

    Args:
        first (RUN): folder of a run
        others (RUN): folders of others
    """
    from burnish.report.runs import configuration, differences, flat, other_rewards
    from burnish.report.summary import Summary

    names = list(dict.fromkeys([first, *others]))
    if len(names) < 2:
        raise UserError("compare needs two different runs; give the folders of some")
    folders = []
    for name in names:
        folders.append(folder := RunFolder.of_run(name))
        if error := configuration(folder.config).get("error"):
            raise UserError(error)
    console = terminal.console(highlight=False)
    summaries = [Summary.read(folder) for folder in folders]
    table = Table(box=None, pad_edge=False)
    for title in ("", *names):
        table.add_column(Text(title), justify="right" if title else "left", overflow="fold")
    table.add_row("updates", *(f"{run.updates}/{run.planned}" for run in summaries))
    table.add_row("time of updates", *(terminal.duration(run.seconds) for run in summaries))
    measures = {one.key: one for run in summaries for one in run.measures() if not one.watched}
    for measure in measures.values():
        values = [(measure.of(run.before), measure.of(run.after)) for run in summaries]
        cells = [f"{measure.show(before)} → {measure.show(after)}" for before, after in values]
        table.add_row(Text(measure.title), *cells)
    console.print(table)
    configurations = {name: flat(configuration(folder.config)) for name, folder in zip(names, folders, strict=True)}
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
        own = [
            f"{one['option']}={one['values'][place]}"
            for one in changed
            if None in one["values"] and one["values"][place] is not None
        ]
        if own:
            console.print(Text("\nOnly in ").append(f"{name}: ", "bold").append(", ".join(own)))
    return 0


def report(run: str) -> int:
    """Write the report of a run.

    Examples:
        burnish report runs/quickstart      curves and pictures of a run as one HTML page in its folder

    Args:
        run: folder of a run
    """
    from burnish.report.page import write_report

    path = write_report(RunFolder.of_run(run))
    terminal.console().print(f"The report is {path}", soft_wrap=True, markup=False, highlight=False)
    return 0
