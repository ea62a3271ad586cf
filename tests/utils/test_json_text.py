"""JSON of strangers: whatever is wrong with it is a ValueError, and what is right can be handled."""

import json
import pickle

import pytest

from burnish.utils.errors import UserError
from burnish.utils.json_text import DEEPEST, LARGEST, parse_json, read_object


@pytest.mark.parametrize("text", ['{"a": [1, {"b": null}]}', "[]", "1e5", '"ü"', "[" * 50 + "]" * 50])
def test_what_is_json_is_read(text):
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)


def test_long_is_not_deep():
    text = json.dumps([[{"a": [1]}] * 10] * 1000)
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize("depth", [DEEPEST + 1, 300, 900, 980, 5000, 1_000_000])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_what_is_deep_is_refused_and_what_is_not_can_be_handled(depth, opened, closed):
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(opened * depth + "1" + closed * depth)
    most = DEEPEST - 1
    value = parse_json(opened * most + "1" + closed * most)
    assert pickle.loads(pickle.dumps(value)) == value == json.loads(json.dumps(value))


@pytest.mark.parametrize("text", ["", "{", "nope", b"\xff\xfe\xff", "9" * 5000, "\0", "1" + "0" * 309])
def test_what_is_no_json_is_told(text):
    with pytest.raises(ValueError):  # noqa: PT011 (json words them)
        parse_json(text)


def test_a_whole_number_that_is_read_is_a_float_as_well():
    assert float(parse_json(f"[{'9' * 308}, -{'9' * 307}]")[0]) == 1e308


def test_files_that_describe_something_hold_an_object(tmp_path):
    file = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError):
        read_object(file)
    for text, why in (("[1]", "contains list"), ("{", "is not JSON"), ("[" * 10_000, "nested too deeply")):
        file.write_text(text)
        with pytest.raises(UserError, match=why):
            read_object(file)
    with file.open("wb") as huge:
        huge.truncate(LARGEST + 1)
    with pytest.raises(UserError, match="too many"):
        read_object(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match="is a folder; give a file"):
        read_object(file)
