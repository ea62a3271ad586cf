"""``burnish config``, ``burnish recipes`` and ``burnish report``: what a run is, could be, and has done."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from burnish.commands.hardware import hardware_complaint, has_driver
from burnish.config import describe, load
from burnish.config.disk import disk_problems
from burnish.config.hardware import listed, made_for, read_machine
from burnish.config.load import BASE, find_recipe, hardware_of, recipe_names
from burnish.config.run_folder import RunFolder
from burnish.config.yaml_text import parse
from burnish.utils import terminal
from burnish.utils.errors import UserError
from burnish.utils.paths import RECIPES


def config(recipe: str, overrides: Sequence[str]) -> int:
    """Print the configuration that ``burnish train`` would use, and what keeps it from starting on this machine.

    Missing files are no error, since a recipe is read before its model is fetched; what is in a model's files is left
    to ``burnish train``.
    """
    from rich.text import Text

    resolved = load(recipe, overrides)
    console = terminal.console(highlight=False)
    for line in describe(resolved, " ".join([recipe, *overrides])).splitlines():
        option, mark, words = ("", "", line) if line.startswith("#") else line.partition("  # ")
        changed = "bold green" if words.startswith("[default ") else ""
        console.print(Text.assemble((option, changed), (mark + words, "dim")), soft_wrap=True)
    if (stated := hardware_of(recipe)) and read_machine(overrides)[0].gpus is None:
        console.print(Text(f"\n# {made_for(recipe, stated)}", "dim"), soft_wrap=True)
    lacking = None if has_driver() else hardware_complaint(resolved)  # to count GPUs, PyTorch has to be loaded
    problems = [*([lacking] if lacking else []), *disk_problems(resolved, reads=False)]
    if problems:
        console.print(Text("\n# Before burnish train can start here:", "bold yellow"), soft_wrap=True)
    for problem in problems:
        console.print(Text(f"#   - {' '.join(problem.split())}", "yellow"), soft_wrap=True)
    return 0


def recipes(word: str = "") -> int:
    """Print every recipe with its description, by folder; with a word, those that have it in either."""
    from rich.table import Table
    from rich.text import Text

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


def report(run: str) -> int:
    """Write report.html into the folder of a run, finished or not."""
    from burnish.report.page import write_report

    folder = RunFolder.of_run(run)
    terminal.console().print(f"The report is {write_report(folder)}", soft_wrap=True, markup=False, highlight=False)
    return 0
