"""Printing untrusted text (prompts, responses, names, errors) without terminal control codes."""

from __future__ import annotations

import gc
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

from burnish.utils.addresses import redacted
from burnish.utils.errors import ConfigError, UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

# control characters, and those that change the reading direction
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LINES = 10  # of a message
LONGEST_LINE = 600  # characters
SOON, PAUSE = 3.0, 30.0  # seconds before the first line about progress in a log, and between others

bars: list[Progress] = []  # that stay on the screen: a terminal can't have two, so further ones are rows of the last


def printable(text: str) -> str:
    r"""Text with control characters escaped, as ``\x1b``; tabs and newlines stay."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def cut(text: str, longest: int = LONGEST_LINE) -> str:
    """A line of limited length, cut in its middle since the end says what to do."""
    if len(text) <= longest:
        return text
    left = longest * 2 // 3
    return f"{text[:left]} ... {len(text) - longest} characters ... {text[-(longest - left) :]}"


def counted(number: int, plural: str) -> str:
    """How many there are of something: 1 image, 5,760 images."""
    return f"{number:,} {plural.removesuffix('s') if number == 1 else plural}"


def message(error: UserError) -> str:
    """Message of an error in at most ten lines."""
    if not isinstance(error, ConfigError):
        return _one(str(error))
    if error.count == 1:
        return _one("\n".join([*error.complaints, *([error.way_out] if error.way_out else [])]))
    # several problems share the length, so that the last is as readable as the first
    shown = [cut(" ".join(one.split()), LONGEST_LINE // 2) for one in error.complaints]
    shown = shown[: LINES - 2]
    more, way_out = error.count - len(shown), error.way_out or "fix these first"
    rest = [f"and {more} more; {way_out}"] if more else [error.way_out] if error.way_out else []
    return "\n  ".join([f"{error.count} problems", *shown, *rest])


def _one(text: str) -> str:
    lines = [cut(line) for line in text.rstrip().split("\n")]
    if len(lines) <= LINES:
        return "\n".join(lines)
    return "\n".join([*lines[: LINES - 2], f"  ... {len(lines) - LINES + 1} lines ...", lines[-1]])


def console(**options: Any) -> Console:
    """A rich console that escapes control characters."""
    from rich.console import Console
    from rich.segment import Segment

    class Terminal(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable(text), style, control)

    return Terminal(**options)


def say(*parts: str | tuple[str, str], end: str = "\n") -> None:
    """Print a line: words as they are, with a style beside them where they have one."""
    from rich.text import Text

    console(highlight=False).print(Text.assemble(*parts), soft_wrap=True, end=end)


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print rows of words, or of rich's texts; columns of numbers stand on the right."""
    from rich.table import Table
    from rich.text import Text

    cells = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    drawn = Table(title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False)
    drawn.show_header = any(heads)
    for head, *column in zip(heads, *cells, strict=True):
        are_numbers = bool(column) and all(cell.plain[:1] in "0123456789+-–" for cell in column)
        drawn.add_column(Text(head), justify="right" if are_numbers else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*row)
    console(highlight=False).print(drawn)


def redraws(console: Console) -> bool:
    """Whether lines can be drawn over: a real terminal. With FORCE_COLOR a log has colours, and is still a log."""
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


@contextmanager
def progress(title: str, on: Console | None = None) -> Iterator[Callable[..., None]]:
    """Say what is being done, on stderr: a terminal shows a bar with its seconds for as long as it takes, a log gets a
    line at once.

    Yields:
        What may be told how much of how much is done, which then moves the bar, or is a line now and then; or a text
        that says what comes next, in place of both numbers, of which a log gets few.
    """
    screen = on or console(stderr=True)
    if redraws(screen):
        with _row(title, screen) as tell:
            yield tell
        return

    def say(words: str) -> None:
        screen.print(words, highlight=False, markup=False, soft_wrap=True)

    due = time.monotonic() + SOON

    def line(*done: int | str) -> None:
        nonlocal due
        if time.monotonic() >= due + PAUSE * isinstance(done[0], str):
            due = time.monotonic() + PAUSE
            say(f"{title}: {_far(done)}")

    say(title)
    yield line


def _far(done: Sequence[int | str]) -> str:
    """How far something is: 20/1,000, or a text as it is."""
    return "/".join(f"{one:,}" if isinstance(one, int) else one for one in done)


@contextmanager
def _row(title: str, screen: Console) -> Iterator[Callable[..., None]]:
    """A row of the bar that is on the screen, or of a new one."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if not bars:
        columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
        # what is printed meanwhile goes above the bar; with stdout in a file it goes there
        with Progress(*columns, console=screen, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
            bars.append(bar)
            try:
                with _row(title, screen) as tell:
                    yield tell
            finally:
                bars.remove(bar)
        return
    bar = bars[-1]
    row = bar.add_task(title, total=None)
    try:
        yield lambda *done: bar.update(
            row, description=f"{title} {_far(done)}", refresh=True,
            **dict(zip(("completed", "total"), done, strict=True) if len(done) == 2 else ()),
        )  # fmt: skip
    finally:
        bar.remove_task(row)
        bar.refresh()


@contextmanager
def loading_pytorch() -> Iterator[None]:
    """Around the imports of whoever computes; silent where PyTorch is loaded."""
    from importlib import metadata

    own = metadata.packages_distributions
    with without_collecting(), nullcontext() if "torch" in sys.modules else progress("Loading PyTorch"):
        _load_when_used("scipy.stats")  # of which diffusers' schedulers need beta sigmas alone: a second
        # diffusers and transformers ask for all files of all packages, and look up those alone that few have installed
        packages = _LazyMapping(own)
        metadata.packages_distributions = lambda: packages
        try:
            yield
        finally:
            metadata.packages_distributions = own


class _LazyMapping(Mapping[str, list[str]]):
    """What a function returns, which is called when somebody looks something up in it."""

    def __init__(self, function: Callable[[], Mapping[str, list[str]]]) -> None:
        self._content = cache(function)

    def __getitem__(self, key: str) -> list[str]:
        return self._content()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())


def _load_when_used(name: str) -> None:
    """Have a library's module be loaded when something of it is used, and not when it is imported."""

    def load(attribute: str) -> Any:
        if sys.modules.get(name) is module:
            del sys.modules[name]
        return getattr(import_module(name), attribute)

    if name not in sys.modules and (spec := find_spec(name)) is not None:
        sys.modules[name] = module = module_from_spec(spec)
        module.__getattr__ = load  # type: ignore[method-assign]  # is asked for what a module has not, PEP 562


@contextmanager
def without_collecting() -> Iterator[None]:
    """Around what makes many objects that stay, as imports of large libraries do: most of the time might go to looking
    for garbage that isn't there."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.freeze()  # nor is what they hold ever garbage
            gc.enable()


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(redacted(super().format(record)))


def prepare() -> None:
    """Make output that bypasses the console safe.

    Characters that the terminal's encoding lacks are escaped instead of raising; so are control characters in
    warnings, unless a program that embeds Burnish has configured logging.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Lines())


def duration(seconds: float) -> str:
    """Seconds as 45 s, 12 min, 3 h 05 min."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
