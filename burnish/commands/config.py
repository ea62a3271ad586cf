"""``burnish config``: the resolved configuration, as a recipe that explains itself."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.config import describe, load
from burnish.config.disk import disk_problems
from burnish.utils import terminal


def config(recipe: str, overrides: Sequence[str]) -> int:
    """Print the configuration that ``burnish train`` would use, and what it would still lack on this machine.

    What contradicts itself is refused; files that are not there are not, since a recipe is read before its model is
    fetched.
    """
    from rich.text import Text

    resolved = load(recipe, overrides)
    console = terminal.console(highlight=False)
    for line in describe(resolved, " ".join([recipe, *overrides])).splitlines():
        option, mark, words = ("", "", line) if line.startswith("#") else line.partition("  # ")
        changed = "bold green" if words.startswith("[default ") else ""
        console.print(Text.assemble((option, changed), (mark + words, "dim")), soft_wrap=True)
    lacking = disk_problems(resolved)
    if lacking:
        console.print(Text("\n# Before burnish train can start here:", "bold yellow"), soft_wrap=True)
    for complaint in lacking:
        console.print(Text(f"#   - {' '.join(complaint.split())}", "yellow"), soft_wrap=True)
    return 0
