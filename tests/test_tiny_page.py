"""The commands of docs/tiny.md, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.cli import main
from tests.support.shown import ROOT, commands, words

PROMPTS = '{"prompt": "a red fox"}\n{"prompt": "two apples"}\n'


@pytest.mark.slow
@pytest.mark.thorough
def test_its_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("data/pickscore").mkdir(parents=True)
    for name in ("train", "test"):
        Path(f"data/pickscore/{name}.jsonl").write_text(PROMPTS)
    shown = commands((ROOT / "docs" / "tiny.md").read_text())
    assert [words(one)[0] for one in shown] == ["tiny", "tiny", "tiny", "tiny", "tiny", "train", "sample"]
    for one in shown:
        assert main(words(one)) == 0, f"{one}: {capsys.readouterr().err}"
    assert list(Path("clips").glob("*.mp4")) or list(Path("clips").glob("*.webp"))
