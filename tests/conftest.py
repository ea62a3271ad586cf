"""Fixtures that more than one folder of tests uses."""

import pytest

from tests.config import stand_ins


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe that passes every check without a real model, in the current folder."""
    path = stand_ins.files(tmp_path)
    stand_ins.use_assets(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    return str(path)
