"""The page of forms: every example is read from the page's own text, and shown as the page shows it."""

import re

import pytest
from PIL import Image

from burnish.cli import main
from tests.support.shown import ROOT

PAGE = (ROOT / "docs" / "data_forms.md").read_text()
EXAMPLES = re.findall(r"^`([a-z]\w*\.\w+)`.*?\n```\w+\n(.*?)```\n```text\n(.*?)```", PAGE, re.S | re.M)


def test_every_form_is_there():
    names = [name.partition(".")[0] for name, _, _ in EXAMPLES]
    assert names == ["table", "lines", "verl", "trl", "trl_parts", "calls", "thoughts", "swift", "swift_query",
                     "alpaca", "sharegpt", "llava", "mine"]  # fmt: skip
    assert PAGE.count("```\n```text") == len(EXAMPLES)


@pytest.mark.parametrize(("name", "content", "expected"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_an_example_is_read_as_the_page_says(name, content, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(content)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    named = f"{name}:sums" if name.endswith(".py") else name
    assert main(["data", "show", named, "--recipe", "vlm_quickstart", "-n", "1"]) == 0
    shown, _, _ = capsys.readouterr().out.replace(f"{tmp_path}/", "").partition("\n\n")
    kept = [line for line in shown.splitlines() if not line.startswith("  for rewards: ")]
    assert kept == expected.rstrip("\n").splitlines()
