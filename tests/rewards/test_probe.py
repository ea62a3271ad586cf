"""Rewards are tried on made-up samples before a run: those that can't work are refused, with what they failed at."""

from __future__ import annotations

import time

import numpy as np
import pytest

from burnish.options import ScoringOptions
from burnish.registry import lookup
from burnish.rewards.probe import probe
from burnish.rewards.scoring import Scorer
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError

PROMPTS = [Prompt(text="a cat", answer="1", where="prompts.txt:1"), Prompt(text="two dogs", answer="2")]
PICTURE = np.zeros((8, 8, 3), np.uint8)


def function(name: str, kind: str = "flow reward", **arguments):
    return lookup(kind, "function")(path=f"tests.support.bad_rewards:{name}", arguments=arguments)


def tried(processes: int, sample=PICTURE, timeout: float = 60.0, check_cancelled=lambda: None, **rewards) -> None:
    with Scorer(rewards, ScoringOptions(processes=processes, timeout=timeout)) as scorer:
        probe(scorer, PROMPTS, sample, timeout=timeout, check_cancelled=check_cancelled)


HERE = {  # what fails in the run's own process, too, and why
    "raises": r"ZeroDivisionError: not today \(.*bad_rewards\.py:10, in raises\)",
    "raises_the_unspeakable": r"Mute: its message can't be read \(",
    "raises_a_flood": r"ValueError: (\?\[31m)+",
    "reads_a_key": r"KeyError: 'height' \(.*bad_rewards\.py:\d+",
    "one_for_all": r"returned 1 values for 2",
    "gives_text": r"gave 'good', which is not a number",
    "gives_one_number": r"TypeError: 'float' object is not iterable",
    "leaves": r"SystemExit: 0 \(.*bad_rewards\.py:\d+, in leaves\)",
}


@pytest.mark.parametrize("kind", ["flow reward", "language reward"])
@pytest.mark.parametrize("name", HERE)
def test_a_reward_that_fails_is_refused_with_place_and_record(name, kind):
    sample = PICTURE if kind == "flow reward" else Response("what")
    with pytest.raises(UserError, match=f"reward mine: .*{HERE[name]}") as refused:
        tried(0, sample, mine=function(name, kind))
    message = str(refused.value)
    assert "prompt 'a cat' (prompts.txt:1)" in message
    assert "scoring.probe=false" in message
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 1200


def test_it_is_tried_in_the_process_that_will_judge():
    with pytest.raises(UserError, match=r"died twice \(exit status 0\)"):
        tried(1, mine=function("ends_its_process"))


@pytest.mark.slow
def test_one_that_kills_its_process_or_never_ends_is_refused():
    with pytest.raises(UserError, match=r"died twice \(signal 9"):
        tried(1, mine=function("kills_its_process"))
    with pytest.raises(UserError, match=r"timed out after 4 s \(scoring\.timeout\)"):
        tried(1, timeout=4.0, mine=function("never_ends"))


def test_a_wrong_signature_is_refused_without_a_call():
    with pytest.raises(
        UserError,
        match=r"takes_no_prompts\(samples\) \(.*bad_rewards\.py:\d+\) is called as function\(images, prompts\)",
    ):
        function("takes_no_prompts").check(PROMPTS)
    with pytest.raises(
        UserError, match=r"function\(responses, prompts, scale=\.\.\.\).*unexpected keyword argument 'scale'"
    ):
        function("raises", "language reward", scale=2).check(PROMPTS)


@pytest.mark.parametrize("name", ["gives_none", "gives_nan"])
def test_one_that_has_no_value_for_what_is_made_up_is_told_and_not_refused(name, caplog):
    tried(0, mine=function(name))
    assert "reward mine has no value for made-up pictures" in caplog.text
    assert len(caplog.records) == 1


def test_an_async_function_and_one_that_prints_work(caplog):
    tried(0, mine=function("waits"), loud=function("prints"))
    assert not caplog.records
    with Scorer({"mine": function("waits")}, ScoringOptions(processes=0)) as scorer:
        assert scorer.score([PICTURE] * 3, [PROMPTS[0]] * 3).reward.tolist() == [0.0, 1.0, 2.0]


def test_a_reward_that_is_only_watched_must_work_too():
    watched = lookup("flow reward", "function")(path="tests.support.bad_rewards:raises", weight=0.0)
    with pytest.raises(UserError, match="reward watched: ZeroDivisionError"):
        tried(0, good=lookup("flow reward", "jpeg_compressibility")(), watched=watched)


def test_each_reward_is_asked_about_a_prompt_that_it_judges():
    prompts = [Prompt(text="a", label="words"), Prompt(text="b", label="numbers")]
    kind = lookup("language reward", "function")
    rewards = {
        "words": lookup("language reward", "repetition")(labels=["words"]),
        "numbers": kind(path="tests.support.bad_rewards:raises", labels=["numbers"]),
    }
    with (
        Scorer(rewards, ScoringOptions(processes=0)) as scorer,
        pytest.raises(UserError, match=r"reward numbers: .* of prompt 'b'"),
    ):
        probe(scorer, prompts, Response("c"), timeout=60.0, check_cancelled=lambda: None)


def test_a_run_that_is_to_stop_does_not_wait_for_a_reward():
    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    begun = time.monotonic()
    with pytest.raises(Stop):
        tried(1, mine=function("never_ends"), check_cancelled=stop)
    assert time.monotonic() - begun < 30
