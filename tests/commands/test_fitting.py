"""Memory: what a run is said to need of its GPUs before weights are loaded, which sizes fit, and what can't."""

from types import SimpleNamespace

import pytest

import burnish as package
from burnish.commands.fitting import Fit, NoForecast
from burnish.config import load
from burnish.config.batches import layouts
from burnish.plan.advice import Chosen, Tried
from burnish.plan.counter import Peak
from burnish.plan.forecast import Forecast, PoolForecast
from tests.support.tiny_run import TinyRun, burnish


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["24GB", pytest.param("0.1GB", marks=pytest.mark.thorough)])
def test_a_recipe_of_answers_fits_or_is_not_written(memory, tmp_path, monkeypatch, caplog):
    (tmp_path / "prompts.txt").write_text("the number 1\nthe number 2\n")
    answers = ["burnish:quickstart/model", "", tmp_path / "prompts.txt", "", "jpeg_compressibility", "", memory]
    monkeypatch.setattr("builtins.input", lambda question: str(answers.pop(0)))
    place = tmp_path / "mine.yaml"
    if memory == "0.1GB":
        said = burnish("init", place, status=2).message + caplog.text
        assert ("nothing makes it fit" in said, "--reward=jpeg" in said, place.exists()) == (True, True, False)
        return
    assert f"burnish train {place} gpus=1" in burnish("init", place).out
    config = load(str(place))
    assert [name for name, reward in config.rewards.items() if reward.counts] == ["jpeg_compressibility"]
    assert (config.model.path, config.data.val_files) == ("burnish:quickstart/model", None)
    assert "mine.yaml" in burnish("init", place, status=2).message, "nothing is replaced"


GIB = 1 << 30
PEAK = Peak(60 * GIB, {"weights": 20 * GIB, "activations": 40 * GIB})
FOUND = Forecast((PoolForecast("train", 1, {"load": Peak(GIB), "update, backward": PEAK}, 0),))


class AtOnce:
    """Stands in for the process that forecasts."""

    is_ready = True
    fails = ""

    def __init__(self, config: object) -> None:
        pass

    def ask(self, seconds: float, memory: int, advice: float | None = None) -> Chosen | Tried:
        if self.fails:
            raise NoForecast(self.fails)
        if advice is not None:
            return Tried(("a.b=1", "c.d=2"), "a third more computing", 30 * GIB, True)
        return Chosen({"trainer.micro_batch_size": 12} if memory > 80 * GIB else {}, FOUND)

    def close(self) -> None:
        pass


def test_what_fits_is_said_and_what_cannot_is_refused_with_what_would(monkeypatch, capsys):
    monkeypatch.setattr("burnish.commands.fitting.Foreteller", AtOnce)

    def settled(gib: int, *options: str, resumes: bool = False):
        fit, card = Fit(package.load("quickstart", *options), resumes=resumes), {"train": gib * GIB}
        try:
            return fit.settle(SimpleNamespace(gpu_memory=lambda: card)), capsys.readouterr().out  # type: ignore[arg-type]
        finally:
            fit.close()

    config, said = settled(141)
    assert config.trainer.micro_batch_size == 12
    assert "trainer.micro_batch_size=12" in said
    assert "64.5 GiB of 80.0 GiB" in settled(80)[1]
    assert "tight" in settled(61)[1]
    assert settled(80, "forecast=off")[0].trainer.micro_batch_size == 4, "small without a forecast"
    assert "64.5 GiB" in settled(40, "forecast=warn")[1]
    with pytest.raises(ValueError, match=r"64\.5 GiB(.|\n)*40\.0 GiB(.|\n)*a\.b=1 c\.d=2 \(a third more computing"):
        settled(40)
    settled(40, resumes=True)  # a run that goes on has shown whether it fits
    monkeypatch.setattr(AtOnce, "fails", "KeyError: a model that nobody knows")
    assert "KeyError" in settled(40)[1], "a forecast that fails ends no run"


ALL, FOUR = "model.lora=null", "pools.train.processes=4"
TWICE = "pools.train={nodes: 2, processes: 4}"


@pytest.mark.parametrize(("options", "sizes", "stages"), [
    ([TWICE], [1, 4, None], [3]), ([TWICE, ALL], [4, None], [1, 2, 3]), ([FOUR, ALL], [None], [1, 2, 3]),
    ([FOUR, "sharding.context_parallel=2"], [None], [3]), ([FOUR, "sharding.offload=true"], [None], [3]),
    (["pools.train={nodes: 2, processes: 3}", "sharding.tensor_parallel=2"], [1, None], [3]),
], ids=str)  # fmt: skip
def test_the_least_traffic_between_ranks_is_tried_first(options, sizes, stages):
    found = [(one["sharding.shard_size"], one["sharding.zero_stage"])
             for one in layouts(package.load("quickstart", "runtime=ray", *options))]  # fmt: skip
    assert found == [(size, stage) for size in sizes for stage in stages]


def test_a_run_that_is_resumed_keeps_the_sizes_that_it_began_with(files):
    run = TinyRun(files, "generators", "flux", "algorithm=flow_grpo", "checkpoint.every=1", name="sizes")
    run.train("steps=1")
    written = run.output / "config.yaml"
    assert package.load(str(written)).trainer.micro_batch_size == 96
    # as if memory had allowed no more
    written.write_text(written.read_text().replace("micro_batch_size: 96", "micro_batch_size: 3"))
    run.train("steps=2")
    again = package.load(str(written))
    assert (again.steps, again.trainer.micro_batch_size, again.rollout.batch_size) == (2, 3, 96)
