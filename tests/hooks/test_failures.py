"""Missing rewards are named, kept and counted; a run that learns nothing ends with what it failed at."""

from __future__ import annotations

import json
import logging

import pytest
import torch

from burnish.config.run_folder import RunFolder
from burnish.hooks.failures import Failures, NothingLearned
from burnish.options import StepOptions
from burnish.types.prompt import Prompt
from burnish.types.rollout import Rollouts, Scores, failures_of

EMPTY = {"actor/empty_updates": 1.0, "actor/skipped_updates": 1.0}
LEARNED = {"actor/empty_updates": 0.0, "actor/loss": 0.1}
TRACE = 'Traceback (most recent call last):\n  File "rewards.py", line 3, in score\nValueError: no'


def rollouts(*faults: str) -> Rollouts:
    count = len(faults)
    scores = Scores(
        reward=torch.zeros(count), missing=torch.tensor([bool(fault) for fault in faults]),
        components=torch.zeros(count, 1), names=("mine",), notes=["?"] * count, faults=list(faults),
    )  # fmt: skip
    prompts = [Prompt(text=f"prompt {i}", where=f"data.jsonl:{i + 1}") for i in range(count)]
    sample = torch.arange(count)
    return Rollouts(
        prompts=prompts, group=sample, sample=sample, scores=scores, update=1, version=0, seed=0,
        failures=failures_of(prompts, sample, scores),
    )  # fmt: skip


@pytest.fixture
def hook(tmp_path):
    found = Failures(RunFolder(tmp_path), StepOptions(max_empty_updates=2), steps=100)
    found.start(0)
    return found


def test_a_missing_reward_is_named_kept_and_its_first_traceback_shown_once(hook, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        for update in (1, 2):
            raised = f"mine: ValueError: no (rewards.py:3, in score)\n{TRACE}"
            hook.observe(update, rollouts("", raised, "mine: gave text"))
            hook(update, dict(LEARNED))
    assert caplog.text.count("Traceback") == 1
    lines = [json.loads(line) for line in (tmp_path / "failures.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 1, 2, 2]
    assert lines[0] == {
        "update": 1, "prompt": "prompt 'prompt 1' (data.jsonl:2)", "sample": 1, "count": 1, "traceback": TRACE,
        "why": "mine: ValueError: no (rewards.py:3, in score)",
    }  # fmt: skip


def test_updates_in_a_row_without_rewards_end_the_run_with_the_cause(hook, tmp_path):
    for update in (1, 2):
        hook.observe(update, rollouts("mine: gave text"))
        hook(update, dict(EMPTY))
    hook(3, dict(LEARNED))  # only those in a row count
    for update in (4, 5):
        hook.observe(update, rollouts("mine: gave text"))
        hook(update, dict(EMPTY))
    hook.observe(6, rollouts("mine: gave text"))
    message = r"3 updates in a row have no training signal \(trainer\.max_empty"
    with pytest.raises(NothingLearned, match=message) as ended:
        hook(6, dict(EMPTY))
    message = str(ended.value)
    assert "mine: gave text" in message
    assert "prompt 'prompt 0' (data.jsonl:1)" in message
    assert str(tmp_path / "failures.jsonl") in message
    assert "\n" not in message


def test_equal_rewards_are_borne_ten_times_as_long(hook):
    for update in range(1, 21):
        hook.observe(update, rollouts(""))
        hook(update, dict(EMPTY))
    with pytest.raises(NothingLearned, match="those of each prompt are all equal"):
        hook(21, dict(EMPTY))


@pytest.mark.parametrize("done", [0, 2])
def test_a_short_run_that_never_learned_is_no_success(tmp_path, done):
    hook = Failures(RunFolder(tmp_path), StepOptions(), steps=done + 2)
    hook.start(done)
    for update in (done + 1, done + 2):
        hook.observe(update, rollouts("mine: gave text"))
        hook(update, dict(EMPTY))
    if done:
        hook.finish()  # earlier updates learned something
    else:
        with pytest.raises(NothingLearned, match="all updates have no training signal"):
            hook.finish()


def test_validations_without_any_reward_end_the_run(hook):
    for update in (0, 1):
        hook(update, LEARNED | {"val-aux/missing": 1.0})
    hook(2, LEARNED | {"val-aux/missing": 0.5})
    for update in (3, 4):
        hook(update, LEARNED | {"val-aux/missing": 1.0})
    with pytest.raises(NothingLearned, match="3 validations in a row have no reward at all"):
        hook(5, LEARNED | {"val-aux/missing": 1.0})
