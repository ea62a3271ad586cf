"""``burnish recipes``: what can be trained without writing anything."""

from __future__ import annotations

from pathlib import Path

from burnish.config.load import recipe_names
from burnish.paths import RECIPES


def recipes() -> int:
    """Print every recipe with its description."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("recipe", "what it does", box=None)
    for name in recipe_names():
        table.add_row(name, Text(description(RECIPES / f"{name}.yaml")))
    Console().print(table)
    return 0


def description(path: Path) -> str:
    """The first comment of a recipe."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix("#").strip() for line in lines if line.startswith("#")), "")
