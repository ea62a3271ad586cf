"""Rewards that hang, crash, raise or give nonsense for single samples: each with its documented outcome, in time."""

from __future__ import annotations

import os
import time

import pytest

from burnish.options import ScoringOptions
from burnish.registry import lookup
from burnish.rewards.base import Verdict
from burnish.rewards.breaker import RewardsFailing
from burnish.rewards.given import Given
from burnish.rewards.process import ScoringProcess
from burnish.rewards.scoring import Scorer
from burnish.rewards.text.base import Response
from burnish.types.execution import DROPS, FAILED, REPEATED, RETRIED, TIMED_OUT, execution_of
from burnish.types.prompt import Prompt

PROMPT = Prompt(text="?")
START = 20.0  # seconds within which a process is there, on a machine that is busy


def function(name: str, *, options=None, **arguments):
    path = f"tests.support.failing_rewards:{name}"
    return lookup("language reward", "function")(path=path, arguments=arguments, **(options or {}))


def scored(*texts: str, processes=1, timeout=START, **rewards):
    options = {key: rewards.pop(key) for key in list(rewards) if key.startswith(("max_", "failure_"))}
    with Scorer(rewards, ScoringOptions(processes=processes, timeout=timeout, **options)) as scorer:
        return scorer.score([Response(text) for text in texts], [PROMPT] * len(texts))


def outcomes(scores, label="it"):
    return [row[label][1] for row in scores.ran]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_one_that_hangs_in_c_is_missing_soon_after_its_deadline(processes):
    with Scorer({"it": function("hangs_in_c")}, ScoringOptions(processes=processes, timeout=START)) as warm:
        warm.score([Response("ok")] * processes, [PROMPT] * processes)
        for lane in set(warm._lanes.values()):
            lane.options.timeout = 2.0
        begun = time.monotonic()
        scores = warm.score([Response("ok"), Response("bad")], [PROMPT] * 2)
        assert time.monotonic() - begun < 2 + START
    assert scores.missing.tolist() == [processes == 1, True]
    assert outcomes(scores)[1] == FAILED | TIMED_OUT
    assert "timed out after" in scores.notes[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reads_nowhere", "aborts"])
def test_one_that_kills_its_process_loses_the_sample_that_did_it(name):
    scores = scored("a", "bad", "cc", it=function(name))
    assert scores.missing.tolist() == [False, True, False]
    assert scores.reward[[0, 2]].tolist() == [1.0, 2.0]
    assert "died twice (signal " in scores.notes[1]
    assert [outcome & FAILED for outcome in outcomes(scores)] == [0, FAILED, 0]


@pytest.mark.parametrize(
    ("name", "missing", "why", "failed"),
    [
        ("raises_on_bad", [False, True, False], "RuntimeError: no bad", True),
        ("nan_on_bad", [False, True, False], "nan, which is not finite", False),
        ("one_too_few", [False, True, False], "returned 0 values for 1 responses", True),
    ],
)
@pytest.mark.parametrize("processes", [0, 1])
def test_one_that_raises_or_gives_nonsense_loses_that_sample_alone(name, missing, why, failed, processes):
    scores = scored("a", "bad", "cc", processes=processes, it=function(name))
    if name == "one_too_few":  # who is missing nobody knows, unless each is asked alone
        assert scores.missing[1]
        assert "values for" in scores.notes[1]
        return
    assert scores.missing.tolist() == missing
    assert why in scores.notes[1]
    assert [bool(outcome & FAILED) for outcome in outcomes(scores)] == [False, failed, False]


@pytest.mark.parametrize("processes", [0, 1])
def test_a_failed_sample_is_tried_again_as_often_as_it_says(tmp_path, processes):
    retried = function("recovers", options={"retries": 2}, folder=str(tmp_path), times=3)
    scores = scored("a", "bad", processes=processes, it=retried)
    assert scores.reward.tolist() == [1.0, 3.0]
    # the batch raises, the sample alone raises, and so does the first retry
    assert len(list(tmp_path.iterdir())) == 4
    assert outcomes(scores) == [0, RETRIED]


def test_no_more_often_than_it_says(tmp_path):
    scores = scored("bad", processes=0, it=function("recovers", options={"retries": 1}, folder=str(tmp_path), times=9))
    assert scores.missing.tolist() == [True]
    assert outcomes(scores) == [FAILED | RETRIED]


@pytest.mark.parametrize("processes", [0, 1])
def test_on_failure_raise_ends_the_run_with_the_cause(processes):
    with pytest.raises(
        RewardsFailing, match=r"reward it has no value for prompt '\?', and its on_failure is raise: Runt"
    ):
        scored("a", "bad", processes=processes, it=function("raises_on_bad", options={"on_failure": "raise"}))


def test_a_group_is_left_out_as_a_whole_and_no_other():
    from torch import tensor

    from burnish.types.rollout import settled

    scores = scored(
        "a", "bad", "cc", "ddd", processes=0, it=function("raises_on_bad", options={"on_failure": "drop_group"})
    )
    assert [outcome & DROPS for outcome in outcomes(scores)] == [0, DROPS, 0, 0]
    kept, ran = settled(scores, tensor([0, 0, 1, 1]))
    assert kept.missing.tolist() == [True, True, False, False]
    assert kept.reward[2:].tolist() == [2.0, 3.0]
    assert "left out with its group" in kept.notes[0]
    assert (ran["it"].failed, ran["it"].dropped, len(ran["it"].seconds)) == (1, 2, 4)
    metrics = ran["it"].metrics("it")
    assert metrics["reward/it/dropped"] == 2.0
    assert metrics["reward/it/latency_s/max"] >= metrics["reward/it/latency_s/p50"] >= 0


@pytest.mark.parametrize("processes", [0, 1])
def test_too_many_failures_in_a_row_end_the_run_for_all_who_wait(processes):
    rewards = {"it": function("raises_on_bad")}
    with Scorer(rewards, ScoringOptions(processes=processes, timeout=START, max_failures=3)) as scorer:
        assert (
            scorer.score([Response("bad")] * 2 + [Response("a")] + [Response("bad")], [PROMPT] * 4).missing.sum() == 3
        )
        pending = [scorer.submit([Response("bad")], [PROMPT]) for _ in range(4)]
        for one in pending[1:]:
            with pytest.raises(RewardsFailing, match=r"failed for 3 samples in a row \(scoring\.max_failures=3\)"):
                one.result(timeout=START)
        with pytest.raises(RewardsFailing):
            scorer.score([Response("a")], [PROMPT])


def test_a_share_of_failures_ends_the_run_once_there_are_enough_samples():
    options = ScoringOptions(processes=0, max_failures=None, max_failure_share=0.4, failure_window=10)
    with Scorer({"it": function("raises_on_bad")}, options) as scorer:
        scorer.score([Response("bad"), Response("a")] * 4, [PROMPT] * 8)
        with pytest.raises(RewardsFailing, match=r"5 of the last 10 samples \(scoring\.max_failure_share=0\.4"):
            scorer.score([Response("a"), Response("bad")], [PROMPT] * 2)


def test_what_waits_behind_requests_that_time_out_is_not_asked(tmp_path):
    rewards = {"it": function("counts_itself", folder=str(tmp_path), seconds=5.0)}
    with Scorer(rewards, ScoringOptions(processes=1, timeout=START)) as scorer:
        for lane in scorer._lanes.values():
            while lane._processes[0] is None or not lane._processes[0]._loaded:
                time.sleep(0.05)
            lane.options.timeout = 0.5
        begun = time.monotonic()
        pending = [scorer.submit([Response("a")], [PROMPT]) for _ in range(4)]
        found = [one.result(timeout=START) for one in pending]
        assert time.monotonic() - begun < START
    assert all(bool(scores.missing[0]) for scores in found)
    assert "was not asked, because 2 requests before it timed out" in found[-1].notes[0]


def test_equal_samples_of_equal_prompts_are_scored_once(tmp_path, monkeypatch):
    reward = function("counts_itself", folder=str(tmp_path))
    monkeypatch.setattr(type(reward), "deterministic", True)
    with Scorer({"it": reward}, ScoringOptions(processes=0)) as scorer:
        texts, prompts = ["a", "b", "a", "a"], [PROMPT, PROMPT, PROMPT, Prompt(text="other")]
        scores = scorer.score([Response(text) for text in texts], prompts, Given(group=[0, 0, 0, 1]))
    assert len(list(tmp_path.iterdir())) == 3
    assert outcomes(scores) == [0, 0, REPEATED, 0]
    assert execution_of(scores.ran, [False] * 4)["it"].repeated == 1


@pytest.mark.slow
@pytest.mark.parametrize("merge", [False, True])
def test_a_model_scores_what_waits_together_if_it_may(tmp_path, monkeypatch, merge):
    """scoring.merge"""
    reward = function("counts_itself", folder=str(tmp_path), seconds=0.3)
    monkeypatch.setattr(type(reward), "has_weights", True)
    with Scorer({"it": reward}, ScoringOptions(processes=1, timeout=START, merge=merge)) as scorer:
        pending = [scorer.submit([Response(text)], [PROMPT]) for text in "abcd"]
        assert [one.result(timeout=START).reward.tolist() for one in pending] == [[1.0]] * 4
    together = sorted(int(file.read_text().split()[2]) for file in tmp_path.iterdir())
    assert (together[-1] > 1) == merge
    assert len(together) == 4


@pytest.mark.parametrize("processes", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_whose_child_comes_back_gives_no_sample_anothers_reward(processes, tmp_path):
    own = os.getpid()
    with Scorer({"it": function("forks")}, ScoringOptions(processes=processes)) as scorer:
        for texts in (["a", "bb"], ["ccc"], ["dddd", "e"]):
            scores = scorer.score([Response(text) for text in texts], [PROMPT] * len(texts))
            if os.getpid() != own:
                (tmp_path / "came back").touch()
                os._exit(0)
            assert scores.reward.tolist() == [len(text) for text in texts]
    assert not list(tmp_path.iterdir()), "the child goes on with the run as well"


def test_a_process_that_gives_too_few_verdicts_gives_none(monkeypatch):
    monkeypatch.setattr(ScoringProcess, "call", lambda *_: [Verdict(1.0)])
    scores = scored("a", "bb", "ccc", it=function("forks"))
    assert scores.missing.tolist() == [False, False, False]  # asked one by one, each has its one verdict
    monkeypatch.setattr(ScoringProcess, "call", lambda *_: [Verdict(1.0)] * 2)
    assert scored("a", "bb", "ccc", it=function("forks")).missing.all()
