"""Rewards that were thought of badly: the run's alarms name what they really pay for, with pictures or responses."""

import json
import logging
import re
from pathlib import Path

import pytest

from burnish.alarms.record import read_alarms
from burnish.cli import main
from burnish.config.run_folder import RunFolder
from tests.support.shown import ROOT, blocks

SPOILED = Path(__file__).parents[2] / "benchmarks" / "spoiled_rewards.py"
GAIN = (0.125, 0.954)  # of darkness in a run of 40 updates with all samples: seed 0, before and at the end


def told(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if ": alarm " in record.getMessage()]


def words_of(alarm: str) -> list[str]:
    """An alarm without its numbers and responses, as far as the page shows it."""
    return re.sub(r'"[^"]*"|[-\d.]+', "#", alarm).partition("); see")[0].split()


@pytest.mark.slow
def test_dark_pictures_that_pay_are_noticed_before_half_of_the_gain(tmp_path, caplog):
    words = [
        "train", "quickstart", "rewards.ocr=null", "rewards.border_darkness=null",
        f"rewards.dark={{name: function, path: {SPOILED}:dark}}", "rollout.n=6", "rollout.batch_size=48",
        "algorithm.train_timesteps=3", "steps=7", "optimizer.schedule_updates=40",
        "validation.before=false", "validation.every=null",
        "validation.reference_guidance=null", "scoring.processes=0", f"output_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert main(words) == 0
    folder = RunFolder(tmp_path / "run")
    (dark,) = [text for text in told(caplog) if "dark_share rose" in text]
    assert "the reward pays for it" in dark
    update = int(dark.removeprefix("update ").partition(":")[0])
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert rows[update]["critic/rewards/mean"] < sum(GAIN) / 2
    for name in ("first", f"{update:06d}-dark_share"):
        assert folder.alarm_sheet(name).is_file()
        assert str(folder.alarm_sheet(name)) in dark
    assert rows[-1]["alarms/standing"] == len(read_alarms(folder.alarms)) > 0
    page = folder.report.read_text()
    assert "<h2>Alarms</h2>" in page
    assert page.count("data:image/") >= 2


@pytest.mark.slow
def test_empty_answers_that_please_a_broken_scorer_are_noticed(tmp_path, caplog):
    words = [
        "train", "vlm_quickstart", "rewards.format.weight=0", "rewards.exact.weight=0",
        f"rewards.little_said={{name: function, path: {SPOILED}:little_said}}",
        "steps=8", "optimizer.schedule_updates=40", "validation.before=false", "validation.every=null",
        "scoring.processes=0", f"output_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert main(words) == 0
    folder = RunFolder(tmp_path / "run")
    (length,) = [text for text in told(caplog) if "response_length fell" in text]
    assert "the reward pays for it" in length
    assert "where the reward is above its prompt's mean" in length
    (shown,) = [block.text for block in blocks(ROOT / "docs" / "alarms.md") if block.kind == "text"]
    assert words_of(shown) == words_of(length)
    assert "best rewarded at first: " in length
    (one,) = [found for found in read_alarms(folder.alarms) if found.name == "response_length"]
    first, now = one.quotes
    assert len(first) == len(now) == 8
    assert sum(len(quote.response) for quote in now) < sum(len(quote.response) for quote in first)


@pytest.mark.slow
@pytest.mark.thorough
def test_five_spoiled_runs_are_named_and_seven_honest_ones_are_not(tmp_path, monkeypatch, capsys):
    from benchmarks import alarms

    monkeypatch.setattr("sys.argv", ["alarms", "--runs", str(tmp_path)])
    assert alarms.main() == 0, capsys.readouterr().out
