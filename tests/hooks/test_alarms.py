"""Alarms are raised once, recorded, over when they are, the same after resuming, and can be left out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_run import TinyRun

EQUAL = {2, 3, 4, 5}  # updates of which all rewards are equal


def judge(samples: list[Any], prompts: list[Any], folder: str) -> list[float]:
    with (Path(folder) / "calls").open("ab") as calls:
        calls.write(b".")
        update = calls.tell()
    return [0.5 if update in EQUAL else sum(map(ord, one.text)) % 11 / 10 for one in samples]


def run_of(files: Path, folder: Path, *more: str) -> TinyRun:
    folder.mkdir(exist_ok=True)
    reward = f"{{name: function, path: 'tests.hooks.test_alarms:judge', arguments: {{folder: {folder}}}}}"
    quiet = ["scoring.probe=false", "validation.every=null", "validation.before=false", "checkpoint={every: 1}"]
    options = ["algorithm=grpo", "rewards.odd=null", f"rewards.judge={reward}", *quiet, *more]
    return TinyRun(files, "language", "llama", *options, name=f"alarms/{folder.name}")


def recorded(run: TinyRun, file: str = "alarms") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.output / f"{file}.jsonl").read_text().splitlines()]


def test_an_alarm_is_raised_once_and_is_over_when_it_is_also_in_a_resumed_run(files, tmp_path):
    whole = run_of(files, tmp_path / "whole")
    whole.train("steps=8")
    raised, over = recorded(whole)
    assert (raised["name"], raised["update"], raised["since"]) == ("constant_reward", 4, 2)
    assert over == {"update": 6, "over": "constant_reward"}
    assert [line["alarms/standing"] for line in whole.metrics] == [0, 0, 0, 0, 1, 1, 0, 0, 0]
    _, *rows = whole.metrics
    assert [row["training/epoch"] / rows[0]["training/epoch"] for row in rows] == pytest.approx(range(1, 9))
    for file, kept in ((name, recorded(whole, name)) for name in ("groups", "timeline")):
        assert [line["update"] for line in kept] == list(range(1, 9)), file
    for line in recorded(whole, "groups"):
        for group in line["groups"]:
            off, std = np.subtract(group["rewards"], np.mean(group["rewards"])), np.std(group["rewards"], ddof=1)
            np.testing.assert_allclose(np.multiply(group["advantages"], std + 1e-6), off, atol=1e-5)
            assert (np.diff(group["samples"]).tolist(), group["source"]) == ([1] * 3, "default")
    for line in recorded(whole, "timeline"):
        (spans,) = line["lanes"].values()
        assert line["lanes"].keys() == {"this process"}
        assert min(start for _, start, _ in spans) == 0
        assert (
            {"gen", "reward", "update_actor"}
            <= {what for what, _, _ in spans} - {"step"}
            == {what for what, _, _ in spans}
        )
    parted = run_of(files, tmp_path / "parted")
    parted.train("steps=4")
    parted.train("steps=8")
    assert (recorded(parted), parted.metrics) == (recorded(whole), whole.metrics)


def test_alarms_can_be_left_out_by_their_names_and_all_together(files, tmp_path):
    run = run_of(files, tmp_path / "off", "alarms.off=[constant_reward]")
    run.train("steps=5")
    assert recorded(run) == []
    run = run_of(files, tmp_path / "wrong", "alarms.off=[constant_rewards]")
    assert "alarms.off has constant_rewards" in run.train(status=2).message
    run = run_of(files, tmp_path / "none", "alarms=null")
    run.train("steps=5")
    assert not [name for line in run.metrics for name in line if name.startswith("alarms/")]
