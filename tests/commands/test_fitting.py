"""Memory: what a run is said to need of its GPUs before weights are loaded, which sizes fit, and what can't."""

from __future__ import annotations

from collections.abc import Sequence
from shutil import copytree, ignore_patterns

import pytest
import torch

import burnish as package
from burnish.commands.fitting import Fit
from burnish.forecast.advice import Tried
from burnish.forecast.batches import Chosen
from burnish.forecast.counter import Peak
from burnish.forecast.forecast import Forecast, PoolForecast
from burnish.forecast.process import Foreteller, NoForecast
from burnish.utils.paths import resolve
from tests.support.tiny_run import TinyRun, burnish

GIB = 1 << 30
PEAK = Peak(60 * GIB, {"weights": 20 * GIB, "activations": 40 * GIB})
FOUND = Forecast((PoolForecast("train", 1, {"load": Peak(GIB), "update, backward": PEAK}, 0),))
LITTLE = Tried(("a.b=1",), "little", 70 * GIB, False)
ENOUGH = Tried(("a.b=1", "c.d=2"), "a third more computing", 30 * GIB, True)
SMALL = ["algorithm=flow_grpo", "data.train_batch_size=2", "rollout.n=2", "rollout.num_inference_steps=5"]


class Cards:
    """A controller that knows of its GPUs alone."""

    def __init__(self, gib: int | None) -> None:
        self.pools, self.asked = {} if gib is None else {"train": gib * GIB}, 0

    def gpu_memory(self) -> dict[str, int]:
        self.asked += 1
        return self.pools


class AtOnce:
    """Stands in for the process that forecasts."""

    is_ready = True

    def __init__(self, config: object) -> None:
        type(self).started += 1

    def choose(self, memory: int, seconds: float) -> Chosen:
        if self.fails:
            raise NoForecast(self.fails)
        return Chosen({"trainer.micro_batch_size": 12} if memory > 80 * GIB else {}, FOUND)

    def remedies(self, memory: int, seconds: float) -> Sequence[Tried]:
        return self.tried

    def close(self) -> None:
        pass


@pytest.fixture
def foreteller(monkeypatch):
    kind = type("Other", (AtOnce,), {"started": 0, "fails": "", "tried": ()})
    monkeypatch.setattr("burnish.forecast.process.Foreteller", kind)
    return kind


def settled(gib: int | None, *options: str, resumes: bool = False):
    fit = Fit(package.load("quickstart", *options), resumes=resumes)
    try:
        return fit.settle(Cards(gib))  # type: ignore[arg-type]
    finally:
        fit.close()


FITS = {  # GiB of a GPU, options, the sizes of a micro-batch and of sampling, and what is said
    "auto": (141, [], 12, "trainer.micro_batch_size=12"),
    "small without a forecast": (80, ["forecast=off"], 4, "trainer.micro_batch_size=4"),
    "fast on a CPU": (None, ["forecast=off"], 96, ""), "fits": (80, [], None, "64.5 GiB of 80.0 GiB"),
    "tight": (61, [], None, "tight"), "warned": (40, ["forecast=warn"], None, "64.5 GiB"),
    "unwanted": (40, ["trainer.micro_batch_size=8", "forecast=off"], 8, ""),
    "on the CPU": (40, ["trainer.micro_batch_size=8", "model.device=cpu"], 8, ""),
}  # fmt: skip


@pytest.mark.parametrize(("gib", "options", "size", "words"), FITS.values(), ids=list(FITS))
def test_what_fits_is_said_and_sizes_that_are_auto_become_numbers(foreteller, capsys, gib, options, size, words):
    config = settled(gib, *options)
    said = capsys.readouterr().out
    assert config.rollout.batch_size == 48, "which the recipe states"
    assert size is None or config.trainer.micro_batch_size == size
    assert words in said
    assert bool(words) == bool(said)
    assert foreteller.started == (not {"forecast=off", "model.device=cpu"} & {*options})


def test_what_cannot_fit_is_refused_with_what_would(foreteller, capsys):
    for tried, words in (((LITTLE, ENOUGH), "a.b=1 c.d=2 (a third more computing; 30.0 GiB)"), ((), "GPUs")):
        foreteller.tried = tried
        with pytest.raises(ValueError, match=r"64\.5 GiB") as raised:
            settled(40)
        assert words in str(raised.value)
        assert "40.0 GiB" in str(raised.value)
    assert "force=true" in str(raised.value)
    foreteller.started = 0
    settled(40, resumes=True)
    assert not foreteller.started, "a run that goes on has shown whether it fits"
    foreteller.fails = "KeyError: a model that nobody knows"
    settled(40)
    assert "KeyError" in capsys.readouterr().out, "a forecast that fails ends no run"


def test_the_forecast_begins_while_a_gpu_is_prepared(foreteller, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    Fit(package.load("quickstart"), resumes=False).close()
    assert foreteller.started == 1


@pytest.mark.thorough
def test_a_process_forecasts_and_says_why_it_cannot(tmp_path):
    asked = Foreteller(package.load("quickstart", *SMALL, f"output_dir={tmp_path}"))
    try:
        chosen = asked.choose(80 * GIB, 120)
        (pool,) = chosen.forecast.pools
        assert chosen.sizes == {"trainer.micro_batch_size": 96}
        assert (pool.name, pool.processes) == ("train", 1)
        assert 0 < pool.highest[1].total < GIB
        assert not asked.remedies(1 << 20, 0.0)[0].fits
    finally:
        asked.close()
    unknown = Foreteller(package.load("quickstart", "model.path=nobody/nothing"))
    try:
        with pytest.raises(NoForecast, match=r"model\.path is nobody/nothing"):
            unknown.choose(80 * GIB, 120)
    finally:
        unknown.close()


def test_a_plan_needs_no_weights_and_says_whether_a_run_fits(tmp_path, monkeypatch):
    model = copytree(resolve("burnish:quickstart/model"), tmp_path / "model", ignore=ignore_patterns("*.safetensors"))
    given = [f"model.path={model}", "data.train_files=nowhere.jsonl", *SMALL]
    said = burnish("plan", "quickstart", *given, "memory=24GB").out
    phases = ("load", "sample", "update, forward", "update, backward", "update, optimizer", "publish", "save")
    assert [phase for phase in phases if phase not in said] == []
    assert "It fits into 22.4 GiB" in said
    monkeypatch.setattr("burnish.commands.plan.forecast", lambda config: FOUND)
    monkeypatch.setattr("burnish.forecast.batches.forecast", lambda config: FOUND)
    monkeypatch.setattr("burnish.commands.plan.remedies", lambda *_: iter(()))
    assert "does not fit" in burnish("plan", "quickstart", *given, "memory=200MB", status=1).out


def test_a_run_that_is_resumed_keeps_the_sizes_that_it_began_with(files):
    run = TinyRun(files, "generators", "sd3", "algorithm=flow_grpo", "checkpoint.every=1", name="sizes")
    run.train("steps=1")
    written = run.output / "config.yaml"
    assert package.load(str(written)).trainer.micro_batch_size == 96
    # as if memory had allowed no more
    written.write_text(written.read_text().replace("micro_batch_size: 96", "micro_batch_size: 3"))
    run.train("steps=2")
    again = package.load(str(written))
    assert (again.steps, again.trainer.micro_batch_size, again.rollout.batch_size) == (2, 3, 96)
