"""burnish train says what a run needs of its GPUs before weights are loaded, and refuses what can't fit."""

from collections.abc import Sequence

import pytest
import torch

from burnish.cli import main
from burnish.commands.fitting import Fit
from burnish.config import RunConfig, load
from burnish.forecast import process
from burnish.forecast.advice import Tried
from burnish.forecast.batches import Chosen
from burnish.forecast.counter import Peak
from burnish.forecast.forecast import Forecast, PoolForecast
from burnish.forecast.process import Foreteller, NoForecast
from burnish.utils.errors import UserError
from tests.support.factory import tiny_pipeline
from tests.support.tiny_recipes import flow_recipe, write_recipe

GIB = 1 << 30
PEAK = Peak(60 * GIB, {"weights": 20 * GIB, "activations": 40 * GIB})
SIZES = {"trainer.micro_batch_size": 12}
FOUND = Forecast((PoolForecast("train", 1, {"load": Peak(GIB), "update, backward": PEAK}, 0),))


class Cards:
    """A controller that knows of its GPUs alone."""

    def __init__(self, **pools: int) -> None:
        self.pools, self.asked = pools, 0

    def gpu_memory(self) -> dict[str, int]:
        self.asked += 1
        return self.pools


class AtOnce:
    """Stands in for the process that forecasts."""

    started = 0
    is_ready = True
    fails = ""
    tried: Sequence[Tried] = ()

    def __init__(self, config: object) -> None:
        type(self).started += 1

    def choose(self, memory: int, seconds: float) -> Chosen:
        if self.fails:
            raise NoForecast(self.fails)
        return Chosen(SIZES if memory > 80 * GIB else {}, FOUND)

    def remedies(self, memory: int, seconds: float) -> Sequence[Tried]:
        return self.tried

    def close(self) -> None:
        pass


@pytest.fixture
def foreteller(monkeypatch: pytest.MonkeyPatch) -> type[AtOnce]:
    kind = type("Other", (AtOnce,), {})
    monkeypatch.setattr(process, "Foreteller", kind)
    return kind


def check(cards: Cards, *options: str, resumes: bool = False) -> RunConfig:
    fit = Fit(load("quickstart", options), resumes=resumes)
    try:
        return fit.settle(cards)  # type: ignore[arg-type]
    finally:
        fit.close()


def test_batches_that_are_auto_become_the_numbers_that_fit(foreteller, capsys):
    config = check(Cards(train=141 * GIB))
    assert (config.trainer.micro_batch_size, config.rollout.batch_size) == (12, 48)
    assert "trainer.micro_batch_size=12" in capsys.readouterr().out


@pytest.mark.parametrize(("gpus", "rows"), [({"train": 80 * GIB}, 4), ({}, 96)])
def test_without_a_forecast_they_are_small_and_on_a_cpu_as_fast_as_there(foreteller, gpus, rows, capsys):
    config = check(Cards(**gpus), "forecast=off")
    assert (config.trainer.micro_batch_size, config.rollout.batch_size) == (rows, 48)  # the recipe states the latter
    assert ("trainer.micro_batch_size=4" in capsys.readouterr().out) == bool(gpus)


def test_a_run_that_fits_says_so_in_one_line(foreteller, capsys):
    check(Cards(train=80 * GIB))
    said = capsys.readouterr().out
    assert said == "Memory forecast for each GPU: train needs 64.5 GiB of 80.0 GiB in 'update, backward'\n"


def test_what_fits_but_for_reserves_is_trained_and_called_tight(foreteller, capsys):
    check(Cards(train=61 * GIB))
    assert "which is tight" in capsys.readouterr().out


def test_what_cannot_fit_is_refused_with_what_would(foreteller, capsys):
    foreteller.tried = (
        Tried(("a.b=1",), "little", 70 * GIB, False),
        Tried(("a.b=1", "c.d=2"), "a third more computing", 30 * GIB, True),
    )
    with pytest.raises(UserError) as raised:
        check(Cards(train=40 * GIB))
    said = str(raised.value)
    assert "a process of pool train needs 64.5 GiB, in 'update, backward', most of it activations (40.0 GiB)" in said
    assert "its GPUs have 40.0 GiB; it fits with a.b=1 c.d=2 (a third more computing; 30.0 GiB)" in said
    assert "force=true" in said


def test_where_nothing_helps_that_is_said(foreteller):
    with pytest.raises(UserError, match=r"none of the options .* use more GPUs"):
        check(Cards(train=40 * GIB))


def test_with_warn_it_is_trained_all_the_same(foreteller, capsys):
    check(Cards(train=40 * GIB), "forecast=warn")
    assert "Warning: by forecast a process of pool train needs 64.5 GiB" in capsys.readouterr().out


def test_a_forecast_that_fails_ends_no_run(foreteller, capsys):
    foreteller.fails = "KeyError: a model that nobody knows"
    check(Cards(train=40 * GIB))
    assert capsys.readouterr().out.startswith("No memory forecast, and the run goes on without: KeyError")


@pytest.mark.parametrize("options", [["forecast=off"], ["model.device=cpu"]])
def test_nothing_is_asked_where_nothing_is_wanted(foreteller, options, capsys):
    cards = Cards(train=40 * GIB)
    check(cards, "trainer.micro_batch_size=8", *options)
    assert (cards.asked, foreteller.started, capsys.readouterr().out) == (0, 0, "")


def test_a_run_that_goes_on_has_shown_whether_it_fits(foreteller):
    check(Cards(train=40 * GIB), resumes=True)
    assert not foreteller.started


def test_without_gpus_nothing_is_forecast(foreteller, capsys):
    check(Cards())
    assert (foreteller.started, capsys.readouterr().out) == (0, "")


def test_where_a_gpu_is_here_the_forecast_begins_before_data_is_read(foreteller, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    Fit(load("quickstart"), resumes=False).close()
    assert foreteller.started == 1


@pytest.mark.thorough
@pytest.mark.slow
def test_a_process_forecasts_and_says_why_it_cannot(tmp_path):
    options = ["algorithm=flow_grpo", "data.train_batch_size=2", "rollout.n=2", "rollout.num_inference_steps=5"]
    asked = Foreteller(load("quickstart", [*options, f"output_dir={tmp_path}"]))
    try:
        chosen = asked.choose(80 * GIB, 120)
        (pool,) = chosen.forecast.pools
        assert chosen.sizes == {"trainer.micro_batch_size": 96}
        assert (pool.name, pool.processes) == ("train", 1)
        assert 0 < pool.highest[1].total < GIB
        tried = asked.remedies(1 << 20, 0.0)
        assert tried[0].options
        assert not tried[0].fits
    finally:
        asked.close()
    unknown = Foreteller(load("quickstart", ["model.path=nobody/nothing"]))
    try:
        with pytest.raises(NoForecast, match=r"model\.path is nobody/nothing"):
            unknown.choose(80 * GIB, 120)
    finally:
        unknown.close()


@pytest.mark.slow
def test_a_run_that_is_resumed_keeps_the_sizes_that_it_began_with(tmp_path):
    tiny_pipeline(tmp_path / "sd3", vae=False)
    (tmp_path / "prompts.txt").write_text("a cat\ntwo dogs\n")
    tree = flow_recipe(tmp_path, "sd3") | {"algorithm": "flow_grpo", "rewards": {"jpeg_compressibility": {}}}
    write_recipe(tmp_path / "recipe.yaml", tree)
    command = ["train", str(tmp_path / "recipe.yaml")]
    assert main([*command, "steps=1"]) == 0
    written = tmp_path / "run" / "config.yaml"
    assert load(str(written)).trainer.micro_batch_size == 96
    # as if memory had allowed no more
    written.write_text(written.read_text().replace("micro_batch_size: 96", "micro_batch_size: 3"))
    assert main(command) == 0
    again = load(str(written))
    assert (again.steps, again.trainer.micro_batch_size, again.rollout.batch_size) == (2, 3, 96)
