"""Blocks of code and commands that documents and examples show.

A block's fence names what it is (``KINDS`` in tests/documents/test_pages.py); one that is a file has the file's name as
the title of its fence: ```` ```yaml title="mine.yaml" ````.
"""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from burnish.registry import KINDS, lookup, names
from tests.support.tiny_run import burnish

ROOT = Path(__file__).parents[2]
OWN_PAGES = [ROOT / "docs" / f"own_{what}.md" for what in ("model", "data", "reward", "algorithm")]
BESIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md", "benchmarks/README.md",
                                   "tests/README.md", ".github/RELEASING.md")]  # fmt: skip
MINE = "my_recipe.yaml"  # what the reader's own recipe is called
HOLLOW = re.compile(r"(?<![\w\"'`])(\[\]|\{\}|nan)(?![\w\"'`])")  # printed in the place of a value
FENCED = re.compile(r"^```.*?^```", re.M | re.S)
FENCE = re.compile(r'```(?P<kind>\w*)(?: title="(?P<title>[\w./-]+)")?')


@dataclass(frozen=True)
class Block:
    where: str  # page:line
    kind: str
    title: str  # name of the file that it is, or nothing
    text: str


def blocks(page: Path, text: str | None = None) -> Iterator[Block]:
    """The blocks of a page, in order.

    Raises:
        ValueError: a fence is of another form, or isn't closed.
    """
    begun: tuple[str, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate((page.read_text() if text is None else text).splitlines(), 1):
        where = f"{page.name}:{number}"
        if begun is not None and line.rstrip() == "```":
            yield Block(*begun, "".join(lines))
            begun, lines = None, []
        elif begun is not None:
            lines.append(f"{line}\n")
        elif line.lstrip().startswith(("```", "~~~")):
            found = FENCE.fullmatch(line.rstrip())
            if found is None:
                raise ValueError(f'{where}: {line!r}; write ```KIND or ```KIND title="FILE" at the start of a line')
            begun = where, found["kind"], found["title"] or ""
    if begun is not None:
        raise ValueError(f"{begun[0]}: the block has no end")


def spans(text: str) -> list[str]:
    """What stands in backticks outside of blocks, each once."""
    return list(dict.fromkeys(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCED.sub("", text))))


def shell_lines(text: str) -> list[str]:
    """Lines of a shell, continued ones as one, without those that are comments."""
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def commands(text: str) -> list[str]:
    """Lines that begin with burnish, continued ones as one, without comments."""
    return [line for line in shell_lines(text) if line.startswith("burnish ")]


def words(command: str) -> list[str]:
    """What follows the name of the program, up to what belongs to a shell, with numbers where a shell puts its own."""
    found = []
    for word in shlex.split(command, comments=True)[1:]:
        if word in ("&", "|", "&&", ">", "$@"):
            break
        found.append(re.sub(r"\$\{?\w+\}?", "1", word))
    return found


def own_recipe(folder: Path) -> Path:
    (block,) = (one for one in blocks(ROOT / "README.md") if one.title == MINE)
    path = folder / MINE
    path.write_text(block.text)
    return path


@cache
def recipe_names() -> tuple[str, ...]:
    """Recipes that ship, as a shell completes them."""
    found = burnish("completion", "zsh", "--", "config", "").out.split()
    return tuple(name for name in found if not name.endswith(("/", ".yaml", ".yml")))


@contextmanager
def forgotten() -> Iterator[None]:
    """What is registered in this context is forgotten behind it."""
    before = {kind: {name: lookup(kind, name) for name in names(kind)} for kind in KINDS}
    try:
        yield
    finally:
        for kind, its in KINDS.items():
            its.entries.clear()
            its.entries.update(before[kind])
