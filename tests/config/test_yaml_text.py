"""What YAML may be, and what a few lines of it may stand for."""

import pytest

from burnish.config import load
from burnish.config.yaml_text import MOST, parse
from burnish.utils.errors import ConfigError

LINES = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
BOMB = "\n".join(["a0: &a0 [1, 1]", *LINES])


def test_aliases_mean_what_they_stand_for():
    assert parse("a: &x {b: [1, 2]}\nc: *x\nd: [*x, *x]") == {
        "a": {"b": [1, 2]}, "c": {"b": [1, 2]}, "d": [{"b": [1, 2]}] * 2
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, rf"line \d+, column \d+: more than {MOST} values, each alias \(\*\) counted as often as it is used"),
        ("a: &a [1, *a]", "line 1, column 11: a list or section contains itself"),
        ("a: &a {b: {c: *a}}", "contains itself"),
        ("[" * 100_000, "nest"),
        ("{a: " * 10_000, "nest"),
        ("- " * 10_000 + "1", "nest"),
        ("[" * 61, "nested more than 60 levels"),
        ("x" * 2_000_000, "at most 1048576"),
        ("a: " + "9" * 5000, "invalid value"),
    ],
    ids=["bomb", "itself", "itself below", "brackets", "braces", "dashes", "deep", "large", "digits"],
)
def test_a_few_lines_that_stand_for_too_much_are_refused_at_once(text, why):
    with pytest.raises(ConfigError, match=why):
        parse(text)


def test_a_recipe_of_that_kind_is_refused_by_its_name(tmp_path):
    file = tmp_path / "mine.yaml"
    for text in (BOMB, "x: " + "y" * 2_000_000):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"mine\.yaml: "):
            load(str(file))
