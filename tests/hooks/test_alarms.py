"""Alarms are raised once, recorded with what they look like, over when they are, and the same after resuming."""

import io
import json
import logging

import numpy as np
import pytest
from PIL import Image

from burnish.alarms.record import read_alarms
from burnish.config import load
from burnish.config.run_folder import RunFolder
from burnish.hooks.alarms import Alarms, FirstUpdates, Narrowing
from burnish.hooks.metrics import MetricsLog
from burnish.types.response_stats import Quote
from burnish.utils.reading import read_file

MEANS = [0.1, 0.1, 0.1, 0.5, 0.6, 0.7, 0.7, 0.1, 0.1, 0.1]


def run_of(tmp_path, *options):
    config = load("quickstart", [f"output_dir={tmp_path}", "data.train_batch_size=16", *options])
    folder = RunFolder(tmp_path)
    folder.path.mkdir(exist_ok=True)
    return folder, lambda: Alarms(config, folder, config.alarms, FirstUpdates(folder))


def row(mean: float) -> dict[str, float]:
    name = "critic/dark_share"
    return {f"{name}/mean": mean, f"{name}/std": 0.1, f"{name}/error": 0.01, f"{name}/reward_correlation": 0.8}


def trained(folder, hook, first, last, pictures=()):
    log = MetricsLog(folder, resumed_at=None if first == 1 else first - 1)
    for one in (hook, log):
        one.start(first - 1)
    for update in range(first, last + 1):
        hook._pictures = list(pictures)
        metrics = row(MEANS[update - 1])
        for one in (hook, log):
            one(update, metrics)
    for one in (hook, log):
        one.close()


def picture(shade: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), shade, np.uint8)).save(file, format="PNG")
    return file.getvalue()


def test_an_alarm_is_raised_once_with_pictures_and_is_over_when_it_is(tmp_path, caplog):
    folder, made = run_of(tmp_path)
    with caplog.at_level(logging.INFO):
        trained(folder, made(), 1, 10, [picture(9)])
    (one,) = read_alarms(folder.alarms)
    assert (one.name, one.update, one.over) == ("dark_share", 5, 9)
    assert folder.alarm_sheet("000005-dark_share").is_file()
    said = [record.getMessage() for record in caplog.records]
    assert sum("alarm dark_share: dark_share rose from 0.100" in text for text in said) == 1
    assert "update 9: alarm dark_share is over" in said
    assert [line["alarms/standing"] for line in folder.read_metrics()] == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("at", [1, 4, 5, 8, 9])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path, at):
    whole, made = run_of(tmp_path / "whole")
    trained(whole, made(), 1, 10)
    folder, made = run_of(tmp_path / "parts")
    trained(folder, made(), 1, min(at + 2, 10))  # what came after the checkpoint is done again
    trained(folder, made(), at + 1, 10)
    assert folder.alarms.read_text() == whole.alarms.read_text()
    assert folder.read_metrics() == whole.read_metrics()


def test_forms_that_the_first_responses_had_are_familiar(tmp_path):
    folder = RunFolder(tmp_path)
    first = FirstUpdates(folder)
    assert first.unfamiliar(1, ["words"] * 3 + ["<answer>"], [Quote("Which?", "8", 1.0)]) is None
    assert first.unfamiliar(2, ["words"] * 4, []) is None
    assert first.unfamiliar(3, ["words", "<answer>", "nothing", "nothing"], []) == 0.5
    again = FirstUpdates(RunFolder(tmp_path))
    again.begin(2)
    assert again.unfamiliar(3, ["words", "<answer>", "nothing", "nothing"], []) == 0.5
    assert again.quotes == [Quote("Which?", "8", 1.0)]
    elsewhere = RunFolder(tmp_path / "branch")
    elsewhere.path.mkdir()
    FirstUpdates(elsewhere, folder).begin(2)
    assert read_file(elsewhere.alarms_first) == read_file(folder.alarms_first)
    early = FirstUpdates(RunFolder(tmp_path))
    early.begin(1)  # the second update is done again
    assert early.unfamiliar(2, ["words"] * 4, []) is None


def test_a_validation_whose_best_samples_fell_while_its_mean_rose_is_narrowing(tmp_path):
    folder = RunFolder(tmp_path)
    for update, best, other in ((0, 0.8, 0.1), (10, 0.6, 0.6), (20, 0.9, 0.9)):
        folder.validation(update).mkdir(parents=True)
        lines = [
            json.dumps({"index": index, "sample": sample, "source": "a", "reward": reward + index / 500, "values": {}})
            for index in range(20)
            for sample, reward in enumerate((best, other))
        ]
        (folder.validation(update) / "scores.jsonl").write_text("\n".join(lines))
    found = Narrowing(folder)
    found.add(5, {"critic/rewards/mean": 0.5})
    assert found.alarm is None
    found.add(10, {"val-core/a/reward/mean@2": 0.6})
    assert found.alarm is not None
    assert "the best of 2 samples of a validation prompt fell from 0.819 to 0.619" in found.alarm.text
    found.add(20, {"val-core/a/reward/mean@2": 0.9})
    assert found.alarm is None
