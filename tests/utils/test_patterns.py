"""Regular expressions of a foreign tokenizer.json are tried before a text meets them."""

import json

import pytest

from burnish.utils import patterns
from burnish.utils.patterns import pattern_complaint

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def written(folder, *expressions):
    steps = [{"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated"} for one in expressions]
    (folder / "tokenizer.json").write_text(json.dumps({"pre_tokenizer": {"pretokenizers": steps}, "normalizer": None}))
    return folder


def test_published_ones_pass(tmp_path):
    assert pattern_complaint(tmp_path) == ""
    assert pattern_complaint(written(tmp_path, QWEN, r"(?:\p{L}\p{M}*)+|\s+")) == ""


@pytest.mark.parametrize("expression", ["(a+)+$", "(foo|foofoo)+z", r"(\p{L}+\s?)+$"])
def test_one_that_backtracks_without_end_is_named(tmp_path, capfd, expression):
    said = pattern_complaint(written(tmp_path, QWEN, expression))
    assert said.startswith(f"{tmp_path}/tokenizer.json has the regular expression {expression!r}")
    assert capfd.readouterr() == ("", "")


def test_one_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(patterns, "DEADLINE", 1)
    assert "take more than 1 s over 2000 characters" in pattern_complaint(written(tmp_path, r"(\s*\s*\s*x)"))


def test_too_many_are_refused(tmp_path):
    assert "has 33 regular expressions" in pattern_complaint(written(tmp_path, *"a" * 33))
