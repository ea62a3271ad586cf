"""Commands that documents and examples show, and what the recipe of the README says in place of the reader's own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
MINE = "my_recipe.yaml"  # what the reader's own recipe is called


def commands(text: str) -> list[str]:
    """Lines that begin with burnish, continued ones as one, without comments."""
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.lstrip().startswith("burnish ")]


def words(command: str) -> list[str]:
    """What follows the name of the program, up to what belongs to a shell, with numbers where a shell puts its own."""
    found = []
    for word in shlex.split(command, comments=True)[1:]:
        if word in ("&", "|", "&&", ">", "$@"):
            break
        found.append(re.sub(r"\$\{?\w+\}?", "1", word))
    return found


def own_recipe(folder: Path) -> Path:
    """The recipe that the README shows, as a file."""
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = folder / MINE
    path.write_text(block)
    return path
