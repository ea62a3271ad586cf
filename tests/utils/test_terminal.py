"""Text of others reaches a terminal without its escape codes, and messages stay short enough to be read."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

from rich.table import Table

from burnish.utils import terminal
from burnish.utils.errors import ConfigError, UserError

PACKAGE = Path(terminal.__file__).parents[1]
ATTACK = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eback\x00"


def raw(text: str) -> bool:
    return any(letter in text for letter in "\x1b\x07\x9b\u202e\x00")


def test_escape_codes_are_spelled_out_and_everything_else_stays():
    assert terminal.printable("a\tb\nc ä 猫 👩‍👩‍👧") == "a\tb\nc ä 猫 👩‍👩‍👧"
    assert terminal.printable("\x1b[31m\x07\ud800") == "\\x1b[31m\\x07\\ud800"
    assert not raw(terminal.printable(ATTACK))


def test_a_console_prints_nothing_raw_in_texts_and_tables():
    said = io.StringIO()
    console = terminal.console(file=said, width=200)
    console.print(ATTACK, markup=False)
    table = Table(ATTACK)
    table.add_row(ATTACK)
    console.print(table)
    assert not raw(said.getvalue())
    assert "\\x1b[31mred" in said.getvalue()


def test_colours_of_our_own_still_work():
    said = io.StringIO()
    terminal.console(file=said, force_terminal=True, color_system="standard").print("[red]x[/red]")
    assert "\x1b[31mx" in said.getvalue()


def test_progress_is_lines_in_a_log_and_a_bar_on_a_terminal():
    said, now = io.StringIO(), [0.0]
    log = terminal.console(file=said, force_terminal=True)  # as FORCE_COLOR does
    with terminal.progress("Suite [red]a[/red]", log, lambda: now[0]) as tell:
        for done in range(1, 101):
            now[0] += 1
            tell(1000 * done, 100_000)
    first, *later = said.getvalue().splitlines()
    assert first == "Suite [red]a[/red]"
    assert later == [f"Suite [red]a[/red]: {done},000/100,000" for done in (3, 33, 63, 93)]
    screen = Screen()
    with terminal.progress("Suite [red]a[/red]", terminal.console(file=screen, force_terminal=True, width=80)) as tell:
        tell(50, 100)
    assert "Suite [red]a[/red]" in screen.getvalue()
    assert "50/100" in screen.getvalue()


def test_progress_goes_to_stderr_so_that_output_can_be_parsed(capsys):
    with terminal.progress("Reading"):
        print("found")
    assert capsys.readouterr() == ("found\n", "Reading\n")


def test_a_terminal_with_a_bar_gets_another_row():
    screen = Screen()
    console = terminal.console(file=screen, force_terminal=True, width=80)
    with terminal.progress("Outer", console) as outer:
        outer(1, 4)
        with terminal.progress("Inner", console) as inner:
            inner(3, 7)
        outer(2, 4)
    assert "Inner 3/7" in screen.getvalue()
    assert not terminal.bars


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_warnings_without_a_handler_of_the_users_own_are_printed_harmless(capsys, monkeypatch):
    terminal.prepare()
    assert logging.lastResort is not None
    record = logging.LogRecord("burnish", logging.WARNING, "", 0, "from %s", (ATTACK,), None)
    assert not raw(logging.lastResort.format(record))


def test_nobody_makes_a_console_of_its_own():
    """They use terminal.console, which prints no escape codes of others."""
    assert not [path for path in PACKAGE.rglob("*.py") if re.search(r"\bConsole\(", path.read_text("utf-8"))]


def test_one_thing_is_counted_as_one_however_many_lines_it_has():
    said = terminal.message(UserError("first\n" + "more\n" * 40 + "last"))
    assert said.startswith("first\n")
    assert said.endswith("\nlast")
    assert said.count("\n") == terminal.LINES - 1
    assert "problems" not in said


def test_many_things_are_counted_and_the_first_ones_shown():
    said = terminal.message(ConfigError([f"option{i} is wrong" for i in range(42)])).split("\n")
    assert said[0] == "42 problems"
    assert said[1] == "  option0 is wrong"
    assert said[-1] == "  and 34 more; fix these first"
    assert len(said) == terminal.LINES


def test_what_is_not_among_the_complaints_is_counted_too_and_the_way_out_is_told():
    said = terminal.message(ConfigError(["a", "b"], count=7, way_out="mend such records")).split("\n")
    assert said == ["7 problems", "  a", "  b", "  and 5 more; mend such records"]
    assert terminal.message(ConfigError(["a"], way_out="mend it")) == "a\nmend it"


def test_a_long_line_loses_its_middle():
    said = terminal.message(UserError("option is " + "x" * 100_000 + "; lower it"))
    assert said.startswith("option is xxx")
    assert said.endswith("; lower it")
    assert len(said) < 700
