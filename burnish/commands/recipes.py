"""``burnish recipes``: what can be trained, and which rewards have to be written for it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from burnish.config.load import BASE, find_recipe, recipe_names
from burnish.config.yaml_text import parse
from burnish.utils import terminal
from burnish.utils.paths import RECIPES


def recipes() -> int:
    """Print every recipe with its description, folder by folder."""
    from rich.table import Table
    from rich.text import Text

    console = terminal.console()
    names = sorted(recipe_names(), key=lambda name: (name.count("/"), name))
    width = max(map(len, names))
    for folder, group in groupby(names, key=lambda name: name.rpartition("/")[0]):
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(min_width=width, no_wrap=True)
        for name in group:
            path = find_recipe(name)
            table.add_row(name, Text(description(path)) + Text(_lacking(path), style="yellow"))
        if folder:
            shared = RECIPES / folder / f"{BASE}.yaml"
            console.print(Text(f"\n{description(shared) if shared.is_file() else folder}", style="bold"))
        console.print(table)
    console.print(Text("\nburnish config RECIPE explains one, and says what it needs before it can be trained."))
    return 0


def description(path: Path) -> str:
    """The first comment of a recipe."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix("#").strip() for line in lines if line.startswith("#")), "")


def _lacking(path: Path) -> str:
    """Functions that a recipe takes from a file of the user's."""
    rewards = parse(path.read_text(encoding="utf-8")).get("rewards") or {}
    written = [label for label, reward in rewards.items() if reward.get("name") == "function"]
    return f" (reward to write: {', '.join(written)})" if written else ""
