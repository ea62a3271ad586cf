"""Text of others in a model card: it is shown, and never Markdown, markup or a link."""

from __future__ import annotations

import re
from collections.abc import Sequence

from burnish.utils.terminal import printable

# what has a meaning in Markdown, HTML or an address; a numeric reference never has one
_MEANING = re.compile(r"[\\`*_{}\[\]<>#&|~^$@\"']|:(?=\S)|\.(?=[^\W\d])|/(?=/)")


def shown(text: str, most: int) -> str:
    """A text of others as part of a paragraph or a table, cut to ``most`` characters."""
    if len(text) > most:
        text = f"{text[:most]}… ({len(text) - most} more characters)"
    lines = printable(text).replace("\t", " ").split("\n")
    return "<br>".join(_MEANING.sub(lambda found: f"&#{ord(found[0])};", line) for line in lines)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of an HTML table of cells that are HTML. One line per row, so that no blank one ends it."""
    top = "".join(f"<th>{head}</th>" for head in heads)
    body = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    return ["<table>", *([f"<tr>{top}</tr>"] if any(heads) else []), *body, "</table>"]
