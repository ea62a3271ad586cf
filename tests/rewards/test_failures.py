"""Rewards that hang, crash, raise, lie or give nonsense: what is missing is never zero, nor another sample's value."""

from __future__ import annotations

import itertools
import json
import os
import random

import pytest
import torch

from burnish.rewards import lanes
from burnish.rewards.base import Verdict
from burnish.rewards.process import ScoringProcess
from burnish.types.execution import DROPS, FAILED, REPEATED, RETRIED, TIMED_OUT, execution_of
from burnish.types.prompt import Prompt
from burnish.types.rollout import settled
from tests.support.asked import reward
from tests.support.http_servers import body_of, send, serving
from tests.support.misbehaving import Misbehaving
from tests.support.scoring import LIMIT, Given, Response, judged_values, scorer
from tests.support.tiny_run import TinyRun

PROMPT = Prompt(text="?")


def function(name: str, *, options=None, **arguments):
    return reward("function", path=f"tests.support.failing_rewards:{name}", arguments=arguments, **(options or {}))


def ask(scoring, *texts, prompts=None, **given):
    return scoring.score([Response(text) for text in texts], prompts or [PROMPT] * len(texts), Given(**given))


def scored(*texts, processes=0, it, **options):
    with scorer({"it": it}, processes, **options) as scoring:
        return ask(scoring, *texts)


def outcomes(scores, label="it"):
    return [row[label][1] for row in scores.ran]


def test_one_that_hangs_in_c_is_missing_soon_after_its_deadline_and_the_next_is_asked(caplog):
    with scorer({"it": function("hangs_in_c")}, processes=1) as scoring:
        ask(scoring, "ok")  # processes are there
        scoring.options.timeout = 2.0
        scores = ask(scoring, "ok", "hang bad")
        scoring.options.timeout = LIMIT
        assert ask(scoring, "cc").reward.tolist() == [2.0]
    assert scores.missing.tolist() == [True, True]
    assert outcomes(scores)[1] == FAILED | TIMED_OUT
    assert "(scoring.timeout)" in scores.notes[1]
    assert "reward it is missing" in caplog.text


def test_one_that_kills_its_process_loses_the_sample_that_did_it():
    with scorer({"it": function("reads_nowhere"), "len": function("raises_on_bad")}, processes=1) as scoring:
        pending = [scoring.submit([Response(text) for text in some], [PROMPT] * len(some))
                   for some in (["a"], ["a", "bad", "cc"], ["ddd"])]  # fmt: skip
        before, killer, after = [one.result(LIMIT) for one in pending]
    assert (before.reward.tolist(), after.reward.tolist()) == ([2.0], [6.0])
    assert killer.missing.tolist() == [False, True, False]
    assert killer.reward[[0, 2]].tolist() == [2.0, 4.0]
    assert "died twice (signal " in killer.notes[1]
    assert [outcome & FAILED for outcome in outcomes(killer)] == [0, FAILED, 0]


@pytest.mark.parametrize("processes", [0, 1])
def test_one_that_raises_or_gives_nonsense_loses_that_sample_alone(processes):
    rewards = {name: function(name) for name in ("raises_on_bad", "nan_on_bad")}
    with scorer(rewards, processes) as scoring:
        scores = ask(scoring, "a", "bad", "cc")
    assert scores.missing.tolist() == [False, True, False]
    assert scores.components[[0, 2]].tolist() == [[1.0, 1.0], [2.0, 1.0]]
    assert scores.components[1].isnan().all()
    for why in ("RuntimeError: no bad (", "in fail)", "nan, which is not finite"):
        assert why in scores.notes[1]
    assert [bool(outcome & FAILED) for outcome in outcomes(scores, "raises_on_bad")] == [False, True, False]
    assert not outcomes(scores, "nan_on_bad")[1] & FAILED


@pytest.mark.parametrize("processes", [0, 1])
def test_a_failed_sample_is_tried_again_as_often_as_it_says(tmp_path, processes):
    retried = function("recovers", options={"retries": 2}, folder=str(tmp_path), times=3)
    scores = scored("a", "bad", processes=processes, it=retried)
    assert scores.reward.tolist() == [1.0, 3.0]
    # the batch raises, the sample alone raises, and so does the first retry
    assert len(list(tmp_path.iterdir())) == 4
    assert outcomes(scores) == [0, RETRIED]
    once = function("recovers", options={"retries": 1}, folder=str(tmp_path), times=99)
    assert outcomes(scored("bad", processes=processes, it=once)) == [FAILED | RETRIED]


@pytest.mark.parametrize("processes", [0, 1])
def test_on_failure_raise_ends_the_run_with_the_cause(processes):
    raising = function("raises_on_bad", options={"on_failure": "raise"})
    with pytest.raises(ValueError, match=r"reward it .* prompt '\?'.*on_failure.*raise: RuntimeError: no bad"):
        scored("a", "bad", processes=processes, it=raising)


def test_a_group_is_left_out_as_a_whole_and_no_other():
    scores = scored("a", "bad", "cc", "ddd", it=function("raises_on_bad", options={"on_failure": "drop_group"}))
    assert [outcome & DROPS for outcome in outcomes(scores)] == [0, DROPS, 0, 0]
    kept, ran = settled(scores, torch.tensor([0, 0, 1, 1]))
    assert kept.missing.tolist() == [True, True, False, False]
    assert kept.reward[2:].tolist() == [2.0, 3.0]
    assert "left out with its group" in kept.notes[0]
    assert (ran["it"].failed, ran["it"].dropped, len(ran["it"].seconds)) == (1, 2, 4)
    metrics = ran["it"].metrics("it")
    assert metrics["reward/it/dropped"] == 2.0
    assert metrics["reward/it/latency_s/max"] >= metrics["reward/it/latency_s/p50"] >= 0


def fails_for_the_first(responses, prompts):
    if any(prompt.text.endswith("No. 0?") for prompt in prompts):
        raise RuntimeError("not this one")
    return [float(len(response.text) % 3) for response in responses]


def test_a_run_leaves_out_the_groups_of_a_reward_that_fails_and_counts_them(files):
    mine = f"rewards.mine={{name: function, path: '{__name__}:fails_for_the_first', on_failure: drop_group}}"
    run = TinyRun(files, "language", "llama", "algorithm=grpo", mine, "scoring.probe=false", name="dropping")
    run.train()
    dropped = [row["reward/mine/dropped"] for row in run.metrics if "reward/mine/dropped" in row]
    assert set(dropped) <= {0.0, 4.0}
    assert 4.0 in dropped


@pytest.mark.parametrize("processes", [0, 1])
def test_too_many_failures_in_a_row_end_the_run_for_all_who_wait(processes):
    with scorer({"it": function("raises_on_bad")}, processes, max_failures=3) as scoring:
        assert ask(scoring, "bad", "bad", "a", "bad").missing.sum() == 3
        pending = [scoring.submit([Response("bad")], [PROMPT]) for _ in range(4)]
        for one in pending[1:]:
            with pytest.raises(ValueError, match=r"3 .*scoring\.max_failures=3"):
                one.result(timeout=LIMIT)
        with pytest.raises(ValueError, match="max_failures"):
            ask(scoring, "a")


def test_a_share_of_failures_ends_the_run_once_there_are_enough_samples():
    options = {"max_failures": None, "max_failure_share": 0.4, "failure_window": 10}
    with scorer({"it": function("raises_on_bad")}, **options) as scoring:
        ask(scoring, *["bad", "a"] * 4)
        with pytest.raises(ValueError, match=r"5 of the last 10 .*scoring\.max_failure_share=0\.4"):
            ask(scoring, "a", "bad")


def test_what_waits_behind_requests_that_time_out_is_not_asked(tmp_path):
    with scorer({"it": function("counts_itself", folder=str(tmp_path), seconds=1.5)}, processes=1) as scoring:
        ask(scoring, "a")
        scoring.options.timeout = 0.5
        pending = [scoring.submit([Response("a")], [PROMPT]) for _ in range(4)]
        scores = [one.result(timeout=LIMIT) for one in pending]
    assert all(bool(one.missing[0]) for one in scores)
    assert "was not asked" in scores[-1].notes[0]


def test_equal_samples_of_equal_prompts_are_scored_once(tmp_path, monkeypatch):
    one = function("counts_itself", folder=str(tmp_path))
    monkeypatch.setattr(type(one), "deterministic", True)
    with scorer({"it": one}) as scoring:
        scores = ask(
            scoring, "a", "b", "a", "a", prompts=[PROMPT, PROMPT, PROMPT, Prompt(text="o")], group=[0, 0, 0, 1]
        )
    assert len(list(tmp_path.iterdir())) == 3
    assert outcomes(scores) == [0, 0, REPEATED, 0]
    assert execution_of(scores.ran, [False] * 4)["it"].repeated == 1


@pytest.mark.parametrize("merge", [False, True])
def test_a_model_scores_what_waits_together_if_it_may(tmp_path, monkeypatch, merge):
    """scoring.merge"""
    one = function("counts_itself", folder=str(tmp_path), seconds=0.2)
    monkeypatch.setattr(type(one), "has_weights", True)
    with scorer({"it": one}, processes=1, merge=merge) as scoring:
        pending = [scoring.submit([Response(text)], [PROMPT]) for text in "abcd"]
        assert [one.result(timeout=LIMIT).reward.tolist() for one in pending] == [[1.0]] * 4
    together = sorted(int(file.read_text().split()[2]) for file in tmp_path.iterdir())
    assert (together[-1] > 1) == merge
    assert len(together) == 4


@pytest.mark.parametrize("processes", [0, 1])
def test_one_whose_child_comes_back_gives_no_sample_anothers_reward(processes, tmp_path):
    own = os.getpid()
    with scorer({"it": function("forks")}, processes) as scoring:
        for texts in (["a", "bb"], ["ccc"], ["dddd", "e"]):
            scores = ask(scoring, *texts)
            if os.getpid() != own:
                (tmp_path / "came back").touch()
                os._exit(0)
            assert scores.reward.tolist() == [len(text) for text in texts]
    assert not list(tmp_path.iterdir()), "the child goes on with the run as well"


def test_a_process_that_gives_too_few_verdicts_gives_none(monkeypatch):
    monkeypatch.setattr(ScoringProcess, "call", lambda *_: [Verdict(1.0)])
    with scorer({"it": function("forks")}, processes=1) as scoring:
        # asked one by one, each has its one verdict
        assert ask(scoring, "a", "bb", "ccc").missing.tolist() == [False, False, False]
        monkeypatch.setattr(ScoringProcess, "call", lambda *_: [Verdict(1.0)] * 2)
        assert ask(scoring, "a", "bb", "ccc").missing.all()


class MisbehavingScorer(Misbehaving, ScoringProcess):
    """Dies, or is found out, after some requests, and another one takes its place."""

    started = itertools.count()

    def __init__(self, rewards, timeout: float) -> None:
        self._rewards, self._timeout = rewards, timeout
        drawn = random.Random(next(self.started))
        wrong = ["before", "after", "garbage", "nothing", "less", "more"]
        late = [[], ["again"], ["after"], ["before"]]
        instead = ([drawn.choice(wrong), *drawn.choice([[], ["right"]])] for _ in itertools.count())
        script = (next(instead) if drawn.random() < 0.3 else ["right", *drawn.choice(late)] for _ in itertools.count())
        super().__init__(script, lambda label, samples, *_: [Verdict(float(sample.text)) for sample in samples])


@pytest.mark.parametrize("merge", [False, True])
def test_no_sample_gets_the_reward_of_another_from_processes(monkeypatch, merge):
    monkeypatch.setattr(lanes, "ScoringProcess", MisbehavingScorer)
    one = function("forks")
    monkeypatch.setattr(type(one), "has_weights", merge)
    drawn, number, right = random.Random(0), itertools.count(), 0
    batches = [[Response(str(next(number))) for _ in range(drawn.randint(1, 4))] for _ in range(200)]
    with scorer({"it": one}, processes=2, merge=merge, max_failures=None) as scoring:
        for first in range(0, len(batches), 5):
            together = batches[first : first + 5]
            pending = [scoring.submit(batch, [PROMPT] * len(batch)) for batch in together]
            for batch, scores in zip(together, [one.result(LIMIT) for one in pending], strict=True):
                for sample, value, absent in zip(batch, scores.reward.tolist(), scores.missing.tolist(), strict=True):
                    assert absent or value == float(sample.text)
                    right += not absent
    assert right > 0.5 * next(number)


def test_no_sample_gets_the_reward_of_another_from_a_server():
    drawn, before = random.Random(0), [-1.0]

    def answer(request) -> None:
        rewards = [float(text) for text in json.loads(body_of(request))["responses"]]
        way = drawn.choice(["right", "right", "twice", "less", "more", "nothing", "shortened"])
        if way == "nothing":
            request.close_connection = True
        elif way == "shortened":
            request.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"rewards": [7, 7]}')
            request.close_connection = True
        else:
            send(request, 200, {"rewards": {"less": rewards[:-1], "more": [*rewards, *before]}.get(way, rewards)})
        if way == "twice":
            send(request, 200, {"rewards": before * len(rewards)})
        before[:] = rewards[:1]

    texts = [str(number) for number in range(400)]
    with serving(answer) as url:
        one = reward("remote", url=url, batch_size=2, concurrency=4, retries=0, deadline=120)
        values = judged_values(one, [Response(text) for text in texts], [PROMPT] * len(texts))
    assert all(value in (None, float(text)) for text, value in zip(texts, values, strict=True))
    assert sum(value is not None for value in values) > 0.3 * len(texts)
