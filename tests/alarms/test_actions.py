"""Alarms that act: what each action changes, from when on, and that an interrupted run does the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.alarms.actions import changed, decide
from burnish.alarms.record import Alarm
from burnish.config import load
from burnish.registry import register
from burnish.rewards.base import Hold
from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun

# a KL above 0 is an alarm after three updates
QUIET = ["validation.every=null", "validation.before=false", "checkpoint={every: 1, keep_last: 9}"]
ACTING = ["algorithm=grpo", "algorithm.kl={coef: 0.01}", "alarms.limits={kl: 0}", *QUIET]
CACHED = ["rollout.cache_interval=2", "rollout.fp8=true", "alarms.limits={forecast: 0}", *QUIET]
EVEN = "rewards.even={name: function, path: '{files}/rewards.py:even', weight: 4}"


def run_of(files: Path, name: str, *options: str) -> TinyRun:
    return TinyRun(files, "language", "llama", *ACTING, EVEN, *options, name=f"actions/{name}")


def actions(run: TinyRun) -> list[dict[str, Any]]:
    return json.loads((run.output / "alarms/actions.json").read_text())


def same(one: TinyRun, other: TinyRun) -> None:
    assert one.metrics == other.metrics
    assert actions(one) == actions(other)
    assert (one.output / "alarms.jsonl").read_bytes() == (other.output / "alarms.jsonl").read_bytes()
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name


@pytest.fixture(scope="module", params=["raise_kl", "pause_reward", "exact_sampling"])
def acting(files, request) -> tuple[Callable[[str], TinyRun], TinyRun]:
    def make(name: str) -> TinyRun:
        if request.param == "exact_sampling":
            return TinyRun(files, "generators", "flux", "algorithm=awm", *CACHED, name=f"actions/{name}")
        return run_of(files, name, f"alarms.on={{kl: {request.param}}}")

    run = make(request.param)
    run.train("steps=6")
    return make, run


def test_an_action_changes_its_option_from_the_next_update_on(acting):
    _, run = acting
    ((kind, alarm, update, to),) = [(one["kind"], one["alarm"], one["update"], one["to"]) for one in actions(run)]
    assert (update, to) == (3, 3)
    _, *rows = run.metrics
    if kind == "raise_kl":
        assert [row["actor/kl_coef"] for row in rows] == [0.01] * 3 + [0.1] * 3
    elif kind == "exact_sampling":
        assert [row.get("rollout/computed_steps_ratio") for row in rows] == [0.75] * 3 + [None] * 3
        assert [0 < row.get("rollout/fp8_error", 0) < 0.2 for row in rows] == [True] * 3 + [False] * 3
    else:
        (label,) = {"odd", "even"} - {actions(run)[0]["reward"]}
        alone = [row["critic/score/mean"] == pytest.approx(row[f"critic/{label}/mean"]) for row in rows]
        assert alone[3:] == [True] * 3
        assert not any(alone[:3])
    assert f"{alarm} acted: {kind.replace('_', ' ')}" in (run.output / "report.md").read_text()
    assert "resume: auto" in (run.output / "config.yaml").read_text()


@pytest.mark.parametrize("at", [3, *seldom(2, 4)])
def test_an_interrupted_run_acts_in_the_same_way(acting, at):
    make, whole = acting
    run = make(f"at-{at}")
    run.train(f"steps={at}")
    if at == 3:  # killed when the checkpoint was there, and before it was written down what the alarm does
        (run.output / "alarms/actions.json").unlink()
    run.train("steps=6")
    same(run, whole)


def test_an_alarm_that_stands_acts_once_when_it_is_told_to_later(files):
    run = run_of(files, "later", "mixing.normalise={}")
    run.train("steps=4")
    run.train("steps=6", "alarms.on={kl: raise_kl}")
    assert [(one["update"], one["to"]) for one in actions(run)] == [(4, 4)]
    assert [row["actor/kl_coef"] for row in run.metrics[1:]] == [0.01] * 4 + [0.1] * 2
    assert sum(run.metrics[-1][f"critic/{name}/reward_share"] for name in ("odd", "even")) == pytest.approx(1)


def test_a_rewind_goes_back_before_the_drift_with_half_the_learning_rate_three_times_at_most(files):
    whole, run = (run_of(files, name, "alarms.on={kl: rewind}") for name in ("rewind", "rewind-again"))
    said = whole.train("steps=6", status=75)
    assert "Stopped by alarm kl after 3 of 6 updates" in said.out
    assert [(one["kind"], one["to"]) for one in actions(whole)] == [("rewind", 0)] * 3 + [("stop", 3)]
    assert {row["actor/lr"] for row in whole.metrics if "actor/lr" in row} == {1e-2 / 8}
    run.train("steps=2")
    run.train("steps=6", status=75)
    same(run, whole)
    run.train("steps=4")  # whoever has looked may go on
    assert run.metrics[-1]["training/global_step"] == 4
    few = TinyRun(files, "language", "llama", *ACTING[:-1], "checkpoint={every: 1, keep_last: 3}", name="actions/few")
    few.train("steps=6", "alarms.on={kl: rewind}", status=75)
    assert [(one["kind"], one["to"]) for one in actions(few)] == [("stop", 3)], "the newest three stand, without 0"


def test_a_stop_saves_a_checkpoint_and_the_same_command_goes_on(files):
    run = run_of(files, "stop", "alarms.on={kl: stop}")
    assert "Stopped by alarm kl after 3 of 6 updates" in run.train("steps=6", status=75).out
    assert (run.output / "checkpoints/00000003").is_dir()
    run.train("steps=6")
    plain = run_of(files, "plain")
    plain.train("steps=6")
    assert run.metrics == plain.metrics


def test_samples_beyond_the_band_of_a_statistic_are_held_and_all_where_there_is_no_band(tmp_path):
    config = load("quickstart", ["algorithm.kl_coef=0.5", "alarms.on={dark_share: raise_kl, velocity: raise_kl}"])
    row = {"critic/dark_share/mean": 0.1}
    for before, bound in ((0.5, Hold(below=0.3, factor=10.0)), (0.05, Hold(above=0.25, factor=10.0))):
        drift = Alarm("dark_share", "drift", 4, "it moved", "critic/dark_share/mean", before, 0.1)
        acting = changed(config, [decide("raise_kl", drift, 5, config, [], [row], tmp_path)])
        assert acting.algorithm == config.algorithm
        assert acting.rewards["dark_share"].hold == bound
        twice = decide("raise_kl", drift, 9, config, [], [row], tmp_path)
        assert changed(acting, [twice]).rewards["dark_share"].hold.factor == 100
    level = Alarm("velocity", "level", 4, "it grew", "actor/velocity_norm_ratio", 1.0)
    acting = changed(config, [decide("raise_kl", level, 5, config, [], [row], tmp_path)])
    assert acting.algorithm.kl_coef == 5
    assert acting.rewards == config.rewards


@pytest.mark.parametrize("algorithm", ["flow_grpo", "grpo", *seldom("diffusion_nft", "dgpo")])
def test_a_hold_of_everybody_is_a_larger_coefficient_and_a_gate_that_lets_everybody_go_is_none(files, algorithm):
    half, model, label, option = "generators", "sd3", "brightness", "algorithm.kl_coef"
    if algorithm == "grpo":
        half, model, label, option = "language", "llama", "odd", "algorithm.kl.coef"

    @register("kl gate", "let_go")
    def let_go(rewards: Any, memory: dict[str, Any]) -> torch.Tensor:
        """Holds nobody."""
        return torch.zeros_like(rewards.reward)

    def weights(*options: str) -> dict[str, torch.Tensor]:
        run = TinyRun(files, half, model, f"algorithm={algorithm}", *options, *QUIET, name="actions/hold")
        run.train("steps=1")
        return run.tensors

    def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(one[name], tensor) for name, tensor in other.items())

    quarter, go = f"{option}=0.25", "algorithm.kl_gate=let_go"
    held = [f"rewards.{label}.hold={{above: {bound}, factor: 2}}" for bound in (-1.0, 1e9)]
    everybody, nobody = (weights(quarter, one) for one in held)
    assert same(everybody, weights(f"{option}=0.5"))
    assert not same(everybody, nobody)
    assert same(weights(quarter, held[0], go), everybody), "who is held is not let go"
    assert same(weights(quarter, go), weights())
