"""burnish plan: tables, conclusion and exit code."""

import pytest

from burnish.commands import plan as command
from burnish.commands.plan import plan
from burnish.forecast import batches
from burnish.forecast.counter import Peak
from burnish.forecast.forecast import Forecast, PoolForecast, forecast
from burnish.utils.errors import UserError

SMALL = ["algorithm=flow_grpo", "data.train_batch_size=2", "rollout.n=2", "rollout.num_inference_steps=5"]


@pytest.fixture
def foretold(monkeypatch):
    """A forecast of 10 GiB, at once."""
    peak = Peak(10 << 30, {"weights": 8 << 30, "activations": 2 << 30})
    found = Forecast((PoolForecast("train", 4, {"load": Peak(8 << 30), "sample": peak}, 1 << 30),))
    monkeypatch.setattr(command, "forecast", lambda config: found)
    monkeypatch.setattr(batches, "forecast", lambda config: found)
    monkeypatch.setattr(command, "remedies", lambda *_: iter(()))


def test_a_run_that_fits(foretold, capsys):
    assert plan("quickstart", ["memory=24GB"]) == 0
    said = capsys.readouterr().out
    assert "each of 4 processes of pool train" in said
    assert "It fits into 22.4 GiB" in said
    assert "12.0 GiB, in 'sample', most of it weights (8.0 GiB)" in said
    assert "gradients" not in said.split("\n")[1]  # nobody has any


def test_a_run_that_does_not_fit(foretold, capsys):
    assert plan("quickstart", ["memory=8GiB"]) == 1
    said = capsys.readouterr().out
    assert "does not fit" in said
    assert "use more GPUs (gpus=8)" in said


def test_memory_is_given_once():
    with pytest.raises(UserError, match="twice"):
        plan("quickstart", ["memory=8GB", "memory=9GB"])


@pytest.mark.slow
def test_a_forecast_needs_no_weights(tmp_path):
    from shutil import copytree, ignore_patterns

    from burnish.config import load
    from burnish.utils.paths import resolve

    folder = copytree(resolve("burnish:quickstart/model"), tmp_path / "model", ignore=ignore_patterns("*.safetensors"))
    config = load("quickstart", [f"model.path={folder}", "data.train_files=nowhere.jsonl", *SMALL])
    (pool,) = forecast(config).pools
    assert list(pool.phases) == [
        "load", "baseline", "sample", "annotate", "update, forward", "update, backward", "update, optimizer", "publish",
        "validate", "save",
    ]  # fmt: skip
    assert pool.highest[1].total < 1 << 30
