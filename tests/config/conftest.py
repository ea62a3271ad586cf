"""What tests of configurations share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_hub import FakeHub, fake_hub, use


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    monkeypatch.chdir(tmp_path)
    with fake_hub() as made:
        use(monkeypatch, made, str(tmp_path / "cache"))
        yield made
