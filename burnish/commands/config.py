"""``burnish config``: the resolved configuration, as a recipe that explains itself."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.config import describe, load
from burnish.config.disk import check_disk


def config(recipe: str, overrides: Sequence[str]) -> int:
    """Print the configuration that ``burnish train`` would use, or refuse what it would refuse."""
    from rich.console import Console
    from rich.text import Text

    resolved = load(recipe, overrides)
    check_disk(resolved)
    console = Console(highlight=False)
    for line in describe(resolved, " ".join([recipe, *overrides])).splitlines():
        option, mark, words = ("", "", line) if line.startswith("#") else line.partition("  # ")
        changed = "bold green" if words.startswith("[default ") else ""
        console.print(Text.assemble((option, changed), (mark + words, "dim")), soft_wrap=True)
    return 0
