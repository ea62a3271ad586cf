"""``burnish recipes``: what can be trained without writing anything."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from burnish import terminal
from burnish.config.load import BASE, find_recipe, recipe_names
from burnish.paths import RECIPES


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
            table.add_row(name, Text(description(find_recipe(name))))
        if folder:
            shared = RECIPES / folder / f"{BASE}.yaml"
            console.print(Text(f"\n{description(shared) if shared.is_file() else folder}", style="bold"))
        console.print(table)
    return 0


def description(path: Path) -> str:
    """The first comment of a recipe."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix("#").strip() for line in lines if line.startswith("#")), "")
