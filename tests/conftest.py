"""Fixtures that more than one folder of tests uses."""

import os

import pytest

from tests.config import stand_ins


def pytest_collection_modifyitems(items):
    """Leave out what needs a machine to itself for minutes, unless it is asked for."""
    if not os.environ.get("BURNISH_CLUSTER"):
        for item in items:
            if item.get_closest_marker("cluster"):
                item.add_marker(pytest.mark.skip(reason="set BURNISH_CLUSTER=1 to run it"))


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe that passes every check without a real model, in the current folder."""
    path = stand_ins.files(tmp_path)
    stand_ins.use_assets(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    return str(path)
