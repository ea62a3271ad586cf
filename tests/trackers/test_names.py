"""What trackers are sent: names, messages without secrets; and a library that is missing."""

from __future__ import annotations

import pytest

from burnish.config import load
from burnish.config.disk import disk_problems
from burnish.trackers.names import renamed
from burnish.utils.secrets import redacted


def test_names_of_lightrft():
    values = {
        "actor/pg_loss": 1.0, "critic/rewards/mean": 2.0, "val-core/a/reward/mean@4": 3.0,
        "val-core/b/reward/mean@4": 5.0, "val-aux/a/format/mean@4": 6.0, "perf/throughput": 7.0,
        "val-aux/num_samples": 8.0, "response/reflections/mean": 0.5,
    }  # fmt: skip
    assert renamed(9, values, "verl") == values
    assert renamed(9, values, "lightrft") == {
        "train/policy_loss": 1.0, "train/step_reward_mean": 2.0, "eval/reward_mean": 4.0, "eval/format_reward": 6.0,
        "eval/num_samples": 8.0, "trajectory/reflection_pattern_score_mean": 0.5,
        "perf/throughput": 7.0, "train/global_step": 9.0, "eval/global_step": 9.0,
    }  # fmt: skip


def test_messages_without_secrets():
    environment = {"WANDB_API_KEY": "abcdefgh", "SHORT_KEY": "ab", "HOME": "/home/me", "MY_PASSWORD": "abcdefgh-long"}
    text = "abcdefgh-long, abcdefgh at /home/me, ab, http://me:word@host/x?write_token=abc&step=1"
    assert redacted(text, environment) == "***, *** at /home/me, ab, http://***@host/x?write_token=***&step=1"


@pytest.mark.parametrize("name", ["wandb", "swanlab", "mlflow", "trackio", "clearml"])
def test_a_library_that_is_missing_is_named_with_its_command(name, monkeypatch, tmp_path):
    monkeypatch.setattr("burnish.utils.installed.find_spec", lambda module: None if module == name else object())
    config = load("quickstart", [f"trackers.{name}={{}}", f"output_dir={tmp_path}"])
    (problem,) = disk_problems(config)
    assert problem == f"trackers.{name} needs {name}, which is not installed: pip install 'burnish[{name}]'"
