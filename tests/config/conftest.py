import pytest

from tests.config import stand_ins


@pytest.fixture(autouse=True)
def _rewards():
    stand_ins.register_rewards()


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    path = stand_ins.files(tmp_path)
    stand_ins.use_assets(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    return str(path)
