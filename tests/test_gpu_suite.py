"""The suite for a GPU: without one its parts run on tiny models, and it says what it left out."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from benchmarks.gpu import __main__ as suite
from benchmarks.gpu import models, table
from benchmarks.gpu.meter import LOAD, SAMPLE, UPDATE, Meter, peak
from burnish.config import load
from burnish.forecast.published import published
from burnish.utils.json_text import read_object
from tests.support.pretend_gpu import PretendGpu

NAMES = [model.name for model in models.MODELS]


@pytest.mark.parametrize(
    "name", [NAMES[0], NAMES[2], *(pytest.param(n, marks=pytest.mark.thorough) for n in NAMES[1::2])]
)
def test_tiny_models_go_the_way_of_real_ones(name):
    (model,) = (one for one in models.MODELS if one.name == name)
    row = models.measure(model, "cpu", smoke=True)
    for phase in (SAMPLE, UPDATE):
        assert row[f"{phase} per s"] > 0
        assert 0 < row[f"{phase} share"] < 1
    assert 0 < row["load GiB"] < row["update GiB"] < 0.5
    assert table.figures({"rows": {name: [row]}, "skipped": {}, "failed": {}, "machine": MACHINE}).count(name) == 1


@pytest.mark.thorough
@pytest.mark.slow
def test_forecasts_stand_beside_what_was_measured():
    forecasts: dict[str, float] = {}
    with models.forecast_beside(models.MODELS[0], forecasts, smoke=True):
        row = models.measure(models.MODELS[0], "cpu", smoke=True)
    for phase in (LOAD, SAMPLE, UPDATE):
        assert forecasts[f"{phase} forecast GiB"] == pytest.approx(row[f"{phase} GiB"], rel=0.1)


@pytest.mark.parametrize("model", models.MODELS, ids=lambda model: model.name)
def test_real_sizes_are_those_of_the_recipes_own_models(model, tmp_path):
    config = load(model.recipe, models.options_of(model, tmp_path, "cuda", "bfloat16", smoke=False))
    shipped = load(model.recipe, [])
    config.check()
    assert shipped.model.path == model.published or "3B" in model.published
    assert published()[model.published]
    assert read_object(tmp_path / "model" / config.model_index)
    assert config.model.lora is not None
    if not model.sees:
        assert (config.rollout.height, config.rollout.num_inference_steps) == (512, shipped.rollout.num_inference_steps)


def test_memory_and_time_count_for_the_inner_phase():
    meter = Meter(torch.device("cpu"))
    with meter.watching(), meter.during("gen"):
        held = torch.zeros(2**18)
        with meter.during("reward"):
            big = torch.zeros(2**20)
        del big
        with meter.during("update_actor"):
            meter.counts = True
            other = torch.ones(64, 64) @ torch.ones(64, 64)
    assert held.numel() + other.numel()
    assert meter.peaks[SAMPLE] == 4 * (2**18 + 2**20)
    assert meter.peaks[UPDATE] < meter.peaks[SAMPLE]
    assert set(meter.seconds) == {SAMPLE, UPDATE}


def test_a_gpu_is_asked_for_its_own_peaks(monkeypatch):
    peaks = iter([5, 11, 7, 3])
    with PretendGpu():
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: next(peaks))
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda *_: None)
        meter = Meter(torch.device("cuda"))
        with meter.watching(), meter.during("gen"), meter.during("update_actor"):
            pass
    assert meter.peaks == {SAMPLE: 7, UPDATE: 11}


def test_operations_are_counted_and_compared_with_the_best_product():
    meter = Meter(torch.device("cpu"))
    meter.counts = True
    with meter.during("gen"):
        _ = torch.ones(64, 32) @ torch.ones(32, 16)
    assert meter.operations[SAMPLE] == 2 * 64 * 32 * 16
    assert peak(torch.device("cpu"), torch.float32, rounds=1) > 1e6


MACHINE = {"cards": 1, "device": "a card", "torch": "2", "python": "3"}


def part(name, run, *, seconds=30.0, missing=lambda _: ""):
    return suite.Part(name, run, seconds, missing)


def test_one_part_that_fails_or_hangs_leaves_the_others_alone(monkeypatch, capsys):
    def command(*arguments):
        return lambda one, folder: [{"name": one.command(*arguments).strip()}]

    parts = [
        part("well", command("platform", "--terse")),
        part("broken", command("no_such_module")),
        part("hanging", command("http.server", "0", "--bind", "127.0.0.1"), seconds=1.5),
        part("elsewhere", command("platform"), missing=lambda _: "it needs a card"),
        part("unasked", command("platform")),
    ]
    monkeypatch.setattr(suite, "PARTS", parts)
    found = suite.run_all(suite.Suite(cards=0), [one.name for one in parts[:-1]], 60)
    assert list(found["rows"]) == ["well"]
    assert found["skipped"] == {"elsewhere": "it needs a card"}
    assert "No module named no_such_module" in found["failed"]["broken"]
    assert found["failed"]["hanging"].startswith("timed out after")
    assert "elsewhere: skipped: it needs a card" in capsys.readouterr().out
    late = suite.run_all(suite.Suite(cards=0), ["well"], 0)
    assert late["skipped"] == {"well": "the 0 minutes were over (--minutes)"}


def test_what_is_missing_is_said():
    none, one, two = (suite.Suite(cards=count) for count in (0, 1, 2))
    assert "none" in suite._two_cards(none)
    assert "one" in suite._two_cards(one)
    assert "card" in suite._with_vllm(none)
    assert "--vllm" in suite._with_vllm(one)
    assert not suite._with_vllm(suite.Suite(cards=1, vllm="python"))
    assert none.smoke
    assert not two.smoke


def test_figures_replace_the_ones_of_before(tmp_path, monkeypatch):
    row = {"name": "Big", "of": "pictures", "load GiB": 1.0, "sample GiB": 2.0, "update GiB": 3.0}
    row |= {"update forecast GiB": 3.1}
    row |= {f"{phase} {what}": 0.5 for phase in ("sample", "update") for what in ("per s", "share")}
    found = {
        "rows": {"Big": [row], "quickstart": [{"name": "quickstart", "updates": 30, "seconds": 9.0}]},
        "skipped": {"vllm": "it needs vLLM"}, "failed": {}, "machine": MACHINE,
    }  # fmt: skip
    shown = table.PAGE.read_text()
    text = table.page(table.page(shown, found), found)
    assert text.count("| Big, pictures | 0.5 | 50 % | 0.5 | 50 % | 1.0 | 2.0 | 3.0 (forecast 3.1) |") == 1
    assert "| quickstart | 30 |" in text
    assert "skipped: vllm: it needs vLLM" in text
    assert text.split(table.BEGIN)[0] == shown.split(table.BEGIN)[0]
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps(found | {"machine": MACHINE | {"cards": 0}}))
    monkeypatch.setattr(sys, "argv", ["table", str(file)])
    with pytest.raises(SystemExit):
        table.main()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["quickstart", "vlm_quickstart"])
def test_a_quickstart_runs_shortly_without_a_card(name):
    found = suite.run_all(suite.Suite(cards=0), [name], 300)
    assert not found["failed"]
    (row,) = found["rows"][name]
    assert row["updates"] == 1
