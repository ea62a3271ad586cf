"""Alarms are read as they were written, and nothing else is taken for one."""

import json
from dataclasses import replace

import pytest

from burnish.alarms.base import Alarm
from burnish.alarms.record import Raised, read_alarms
from burnish.types.response_stats import Quote

QUOTES = ((Quote("Which?", "It is 8.", 0.5),), (Quote("Which?", "", None),))
DARK = Alarm("dark_share", "drift", 4, "dark_share rose", "critic/dark_share/mean", 0.1, 0.02)
ONE = Raised(5, DARK, sheets=("first.png", "000005-dark_share.png"))
OTHER = Raised(7, Alarm("response_length", "drift", 6, "response_length fell"), quotes=QUOTES)


def written(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_alarms_come_back_with_what_became_of_them(tmp_path):
    ended, again = {"update": 9, "over": "dark_share"}, replace(ONE, update=12)
    file = written(tmp_path / "alarms.jsonl", ONE.record(), OTHER.record(), ended, again.record())
    assert read_alarms(file) == [replace(ONE, over=9), OTHER, again]
    assert read_alarms(tmp_path / "none") == []


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3}, {"kind": "oracle"}, {"update": -1}, {"update": True}, {"since": "4"}, {"text": None},
        {"sheets": ["../../etc/passwd"]}, {"sheets": ["a/b.png"]}, {"sheets": "first.png"},
        {"quotes": [[{"prompt": 1}]]}, {"before": "much"}, {"quotes": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_line_that_no_run_wrote_is_left_out(tmp_path, change):
    assert read_alarms(written(tmp_path / "alarms.jsonl", ONE.record() | change, OTHER.record())) == [OTHER]


def test_damaged_lines_and_links_are_left_out(tmp_path):
    file = written(tmp_path / "alarms.jsonl", "{", "[1]", "3", '{"update": 3}', ONE.record(), '{"over": "dark_share"}')
    assert read_alarms(file) == [ONE]
    link = tmp_path / "link.jsonl"
    link.symlink_to(file)
    assert read_alarms(link) == []


def test_texts_that_are_too_long_are_cut(tmp_path):
    found = read_alarms(written(tmp_path / "alarms.jsonl", ONE.record() | {"text": "x" * 100_000}))
    assert len(found[0].alarm.text) == 4000
