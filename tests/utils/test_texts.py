"""Texts of strangers: nothing raw on a terminal."""

import io
import logging

from rich.table import Table

from burnish.utils import terminal

ATTACK = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eback\x00"


def raw(text):
    return any(letter in text for letter in "\x1b\x07\x9b\u202e\x00")


def test_nothing_raw_is_printed_in_texts_tables_and_warnings():
    assert terminal.printable("a\tb\nc ä 猫 👩‍👩‍👧") == "a\tb\nc ä 猫 👩‍👩‍👧"
    assert [*map(terminal.duration, (99.4, 99.5, 3570, 11100))] == ["99 s", "2 min", "1 h 00 min", "3 h 05 min"]
    assert terminal.printable("\x1b[31m\x07\ud800") == "\\x1b[31m\\x07\\ud800"
    said = io.StringIO()
    console = terminal.console(file=said, width=200)
    console.print(ATTACK, markup=False)
    table = Table(ATTACK)
    table.add_row(ATTACK)
    console.print(table)
    terminal.prepare()
    warned = logging.lastResort.format(logging.LogRecord("b", logging.WARNING, "", 0, "from %s", (ATTACK,), None))
    assert not any(map(raw, (said.getvalue(), terminal.printable(ATTACK), warned)))
    assert "\\x1b[31mred" in said.getvalue()
    coloured = io.StringIO()
    terminal.console(file=coloured, force_terminal=True, color_system="standard").print("[red]x[/red]")
    assert "\x1b[31mx" in coloured.getvalue(), "colours of our own still work"


def test_two_things_that_take_long_are_two_rows_on_a_terminal(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    console = terminal.console(file=screen, force_terminal=True, width=80)
    with terminal.progress("Outer", console) as outer, terminal.progress("Inner", console) as inner:
        outer(1, 4)
        inner(3, 7)
    assert "Outer 1/4" in screen.getvalue()
    assert "Inner 3/7" in screen.getvalue()
