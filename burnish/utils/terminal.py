"""Everything that is printed passes here: text of others, in prompts, responses, names and errors, moves no cursor."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from burnish.utils.errors import ConfigError, UserError

if TYPE_CHECKING:
    from rich.console import Console

# what a terminal obeys instead of showing it, and what turns the direction of reading
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LINES = 10  # of a message
LONGEST_LINE = 600  # characters


def printable(text: str) -> str:
    r"""Text with escape codes spelled out, as ``\x1b``; tabs and ends of lines stay."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def cut(text: str, longest: int = LONGEST_LINE) -> str:
    """A line that fits on a screen: what is too long loses its middle, since the way out stands at the end."""
    if len(text) <= longest:
        return text
    left = longest * 2 // 3
    return f"{text[:left]} ... {len(text) - longest} characters ... {text[-(longest - left) :]}"


def message(error: UserError) -> str:
    """What an error says, in ten lines at most."""
    if not isinstance(error, ConfigError):
        return _one(str(error))
    if error.count == 1:
        return _one("\n".join([*error.complaints, *([error.way_out] if error.way_out else [])]))
    # several in one message share its length, so that the last is no less readable than the first
    shown = [cut(" ".join(one.split()), LONGEST_LINE // 2) for one in error.complaints]
    shown = shown[: LINES - 2]
    more, way_out = error.count - len(shown), error.way_out or "put these right first"
    rest = [f"and {more} more; {way_out}"] if more else [error.way_out] if error.way_out else []
    return "\n  ".join([f"{error.count} things are wrong", *shown, *rest])


def _one(text: str) -> str:
    lines = [cut(line) for line in text.rstrip().split("\n")]
    if len(lines) <= LINES:
        return "\n".join(lines)
    return "\n".join([*lines[: LINES - 2], f"  ... {len(lines) - LINES + 1} lines ...", lines[-1]])


def console(**options: Any) -> Console:
    """A console of rich that prints nothing raw; whoever makes text for it need not think of that."""
    from rich.console import Console
    from rich.segment import Segment

    class Terminal(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable(text), style, control)

    return Terminal(**options)


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def prepare() -> None:
    """Make what is written without a console harmless, too.

    Letters that the terminal's encoding lacks are spelled out, since an error about them would hide what was to be
    told; and so are escape codes in warnings, unless whoever embeds Burnish has set up logging.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Lines())
