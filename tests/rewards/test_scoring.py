"""Scoring in processes while samples are still drawn: the same verdicts as without, whatever happens to processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from burnish.registry import options
from burnish.rewards.base import Reward, Verdict
from burnish.rewards.batching import Collector
from burnish.rewards.probe import probe
from burnish.types.prompt import Prompt
from burnish.utils.images import NonFiniteImage
from tests.support.asked import flow_reward, reward
from tests.support.drawing import line, noise
from tests.support.failing_rewards import most_at_once, spans, until
from tests.support.language_runs import SMALL, assembly_of
from tests.support.processes import alive, gone
from tests.support.scoring import LIMIT, Response, ask, function, grey, judged, scorer


def wait(pending):
    return pending.result(timeout=LIMIT)


def test_scores_are_the_same_in_any_number_of_processes():
    batches = [
        ([line("472"), noise(0), line("47")], ask("a", "x", "b")),
        ([line("186", 48, 16)], ask("c")),
        ([noise(seed) for seed in range(5)], ask("x", "a", "a", "x", "a")),
        ([], []),
    ]
    every = []
    for processes in (0, 2):
        rewards = {"ocr": flow_reward("ocr"), "odd": function("fails_on_x", weight=0.5)}
        with scorer(rewards, processes) as scoring:
            every.append([wait(one) for one in [scoring.submit(*batch) for batch in batches]])
    for inline, other in zip(*every, strict=True):
        torch.testing.assert_close(other.components, inline.components, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(other.missing, inline.missing)
        assert (other.names, other.notes) == (inline.names, inline.notes)
    first = every[0][0]
    assert first.names == ("ocr", "ocr_exact", "odd")
    assert first.missing.tolist() == [False, True, False]
    torch.testing.assert_close(first.reward[[0, 2]], torch.tensor([1.5, 0.5 + 2 / 3]))
    assert "odd: ZeroDivisionError: x is not for me (" in first.notes[1]
    assert [len(scores) for scores in every[0]] == [3, 1, 5, 0]


def test_a_process_is_light_quiet_and_replaced_when_it_dies(tmp_path):
    rewards = {name: function(name) for name in ("has_torch", "settings", "process", "brightness")}
    rewards |= {"dies": function("dies_on_x", folder=str(tmp_path)), "ocr": flow_reward("ocr")}
    with scorer(rewards, processes=1) as scoring:
        scores = scoring.score([line("472")], ask("a"))
        assert scores.components[0, :2].tolist() == [0.0, 1.0]
        assert scores.notes == ["472"]
        first = int(scores.components[0, 2])
        os.kill(first, signal.SIGINT)
        pending = [scoring.submit(grey(51), ask(text)) for text in ("a", "x", "b")]
        scores = [wait(one).components[0] for one in pending]
        assert [float(one[3]) for one in scores] == [float(one[4]) for one in scores] == pytest.approx([0.2] * 3)
        assert int(scores[0][2]) == first
        second = int(scoring.score(grey(0), ask("a")).components[0, 2])
        os.kill(second, signal.SIGKILL)  # while it is idle
        third = int(scoring.score(grey(0), ask("a")).components[0, 2])
    assert len({first, second, third, os.getpid()}) == 4
    assert len(list(tmp_path.iterdir())) == 2
    assert gone(first, second, third)


def test_a_process_that_takes_nothing_is_not_waited_for():
    large = [np.zeros((1024, 1024, 3), dtype=np.uint8)]  # more than a pipe holds
    with scorer({"pid": function("process")}, processes=1) as scoring:
        first = int(scoring.score(grey(0), ask("a")).components[0, 0])
        scoring.options.timeout = 1.0
        os.kill(first, signal.SIGSTOP)
        lost = wait(scoring.submit(large, ask("a")))
        assert lost.missing.tolist() == [True]
        assert "(scoring.timeout)" in lost.notes[0]
        scoring.options.timeout = LIMIT
        assert scoring.score(large, ask("a")).missing.tolist() == [False]
    assert gone(first)


def test_rewards_that_never_load_are_missing(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import sys, time\nif 'pytest' not in sys.modules:\n    time.sleep(600)\n\ndef score(*_):\n    return [1.0]\n"
    )
    slow = flow_reward("function", path=f"{tmp_path / 'slow.py'}:score")
    with scorer({"slow": slow}, processes=1, timeout=1) as scoring:
        lost = wait(scoring.submit(grey(0), ask("a")))
    assert lost.missing.tolist() == [True]
    assert "1 s (scoring.timeout) waiting for its rewards to load" in lost.notes[0]


@pytest.mark.parametrize("processes", [0, 1])
def test_a_warning_comes_once_for_each_reason_and_spoilt_pictures_have_theirs(processes, caplog):
    rewards = {"odd": function("odd_values"), "bytes": flow_reward("jpeg_compressibility")}
    black = np.zeros((8, 8, 3), np.uint8)
    with scorer(rewards, processes) as scoring:
        for _ in range(3):
            assert scoring.score(grey(0, 3), ask("nan", "inf", "nan")).missing.all()
        prompts = [Prompt(text="a cat", where="prompts.txt:3"), Prompt(text="two dogs")]
        scores = scoring.score([NonFiniteImage.of(black), black], prompts)
    assert scores.components[:, 1].isnan().tolist() == [True, False]
    assert "bytes: the image has non-finite values" in scores.notes[0]
    messages = [record.getMessage() for record in caplog.records]
    assert [sum("odd is missing" in text and why in text for text in messages) for why in ("nan", "inf")] == [1, 1]
    assert sum("bytes is missing: the image has non-finite values; first for prompt 'a cat' (prompts.txt:3)" in text
               for text in messages) == 1  # fmt: skip


def test_closing_ends_processes_and_cancels_what_waits(tmp_path):
    file = tmp_path / "pid"
    with scorer({"hangs": function("tells_and_hangs", file=str(file))}, processes=1) as scoring:
        pending = [scoring.submit(grey(0), ask("a")) for _ in range(2)]
        assert until(lambda: file.exists() and file.read_text())
        pid = int(file.read_text())
        assert alive(pid)
    assert gone(pid)
    for one in pending:
        with pytest.raises(CancelledError):
            wait(one)


def test_processes_follow_a_parent_that_is_killed(tmp_path):
    """The parent is a script without a guard, which the scoring process must not run again."""
    file, output, script = (tmp_path / name for name in ("pid", "output", "parent.py"))
    script.write_text(
        f"""
import sys, time
sys.path[:] = {sys.path!r}
print("started", flush=True)
from tests.support.scoring import ask, function, grey, scorer
scoring = scorer({{"it": function("tells_and_hangs", file={str(file)!r})}}, processes=1)
scores = scoring.submit(grey(0), ask("a"))
time.sleep(600)
"""
    )
    with output.open("w") as opened:
        parent = subprocess.Popen([sys.executable, str(script)], stdout=opened)
    pid = None
    try:
        assert until(lambda: file.exists() and file.read_text().strip())
        pid = int(file.read_text())
        parent.kill()
        parent.wait(timeout=LIMIT)
        assert gone(pid)
    finally:
        parent.kill()
        if pid is not None and alive(pid):
            os.kill(pid, signal.SIGKILL)
    assert output.read_text() == "started\n"


@options
class Here(Reward):
    """Says what the test wants it to say, in this process alone."""

    extras = ("one",)
    said: list[Any]

    def __getstate__(self):
        raise TypeError("it stays here")

    def score(self, images, prompts):
        return self.said


def test_any_reward_is_held_to_its_promises_and_one_that_cannot_be_sent_works_without_processes():
    good = Verdict(1.0, (0.0,), "read")
    assert judged(Here(said=[good]), grey(0), ask("a")) == [good]
    for wrong, why in (
        (Verdict(float("nan"), (0.0,)), "not a finite number"),
        (Verdict(1.0), "0 extras, but declares 1"),
        (Verdict(None, (), "too dark"), "too dark"),
        (Verdict(None), "gave no value"),
    ):
        (said,) = judged(Here(said=[wrong]), grey(0), ask("a"))
        assert said.value is None
        assert why in said.note
    assert all(
        "2 verdicts for 1" in said.note for said in judged(Here(said=[good, good]), grey(0, 3), ask("a", "b", "c"))
    )
    with pytest.raises(ValueError, match=r"here .*scoring\.processes=0"):
        scorer({"here": Here(said=[good])}, processes=1).start()
    with scorer({"here": Here(said=[good])}) as scoring:
        assert scoring.score(grey(0), ask("a")).reward.tolist() == [1.0]


@pytest.mark.parametrize(
    ("changed", "one_by_one", "processes", "portions"),
    [
        (None, True, 1, [1, 2, 1, 2]),  # as they end
        ("has_weights", True, 1, [2, 2, 2]),  # those of a prompt
        ("has_weights", False, 1, [1, 2, 1, 2]),
        ("compares", False, 1, [2, 2, 2]),
        ("puts_away", True, 1, [6]),  # weights take turns on a GPU
        (None, True, 0, [6]),  # this process scores
    ],
)
def test_portions_have_the_scores_of_the_whole_in_the_order_of_the_rows(
    monkeypatch, changed, one_by_one, processes, portions
):
    one = reward("exact")
    values = {"has_weights": True, "compares": lambda self: "groups", "puts_away": property(lambda self: True)}
    if changed:
        monkeypatch.setattr(type(one), changed, values[changed])
    scoring, counts = scorer({"it": one}), []
    submit = scoring.submit

    def recorded(samples, *more) -> Future:
        counts.append(len(samples))
        return submit(samples, *more)

    monkeypatch.setattr(scoring, "submit", recorded)
    monkeypatch.setattr(type(scoring), "overlaps", property(lambda self: processes > 0))
    prompts = [Prompt(text=name, answer="1") for name in "aabbcc"]
    collector = Collector(scoring, prompts, [0, 0, 1, 1, 2, 2], update=1, one_by_one=one_by_one)
    responses = [Response(f"<answer>{row % 3}</answer>") for row in range(6)]
    for rows in ((1,), (0, 3), (2,), (5, 4), range(6)):  # at last all are there, which changes nothing
        collector.add(rows, [responses[row] for row in rows])
    assert collector.scores(lambda: None).reward.tolist() == [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert counts == portions


def test_scoring_overlaps_sampling_and_shares_processes(tmp_path):
    """Several are scored at once, the first while other responses are still written."""
    overrides = [*(one for one in SMALL if not one.startswith(("scoring", "rollout.n"))), "rollout.max_new_tokens=24"]
    assembly = assembly_of(
        *overrides, "scoring.processes=3", "rollout.n=4", "scoring.probe=false", "trainer.mini_batch_size=null",
        "rewards.mine={name: function, path: 'tests.support.failing_rewards:counts_itself', weight: 0.5, "
        f"arguments: {{folder: '{tmp_path}', meeting: 2}}}}",
    )  # fmt: skip
    ended: list[int] = []  # responses
    sample = assembly.engine.sample

    def waiting(job):
        def finished(rows, responses):
            job.finished(rows, responses)
            if not ended:
                assert until(lambda: any(tmp_path.iterdir())), "nothing is scored before all responses have ended"
            ended.append(len(rows))

        return sample(replace(job, finished=finished))

    assembly.engine.sample = waiting
    with assembly.scorer as scoring:
        scored = assembly.source.collect(1)
    assert ended[0] < sum(ended) == len(scored) == 16
    assert most_at_once(spans(tmp_path)) >= 2
    assert set(scored.execution) == set(scoring.rewards)


PROMPTS = [Prompt(text="a cat", answer="1", where="prompts.txt:1"), Prompt(text="two dogs", answer="2")]


def bad(name: str, kind=flow_reward, **options):
    return kind("function", path=f"tests.support.bad_rewards:{name}", **options)


def tried(sample=None, prompts=PROMPTS, processes=0, timeout=LIMIT, check_cancelled=lambda: None, **rewards) -> None:
    sample = np.zeros((8, 8, 3), np.uint8) if sample is None else sample
    with scorer(rewards, processes, timeout) as scoring:
        probe(scoring, prompts, sample, timeout=timeout, check_cancelled=check_cancelled)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", r"ZeroDivisionError: not today \(.*bad_rewards\.py:10, in raises\)"),
        ("raises_the_unspeakable", r"Mute: its message can't be read \("),
        ("raises_a_flood", r"ValueError: (\?\[31m)+"),
        ("reads_a_key", r"KeyError: 'height' \(.*bad_rewards\.py:\d+"),
        ("one_for_all", r"1 values for 2"),
        ("gives_text", r"'good', which is not a number"),
        ("gives_one_number", r"TypeError: 'float' object is not iterable"),
        ("leaves", r"SystemExit: 0 \(.*bad_rewards\.py:\d+, in leaves\)"),
    ],
)
def test_a_reward_that_fails_is_refused_with_place_and_record(name, why):
    kind, sample = (reward, Response("what")) if name == "gives_text" else (flow_reward, None)
    good = kind("format" if sample else "jpeg_compressibility")
    with pytest.raises(ValueError, match=f"reward mine: .*{why}") as refused:
        tried(sample, good=good, mine=bad(name, kind, weight=0.0))
    message = str(refused.value)
    assert "prompt 'a cat' (prompts.txt:1)" in message
    assert "scoring.probe=false" in message
    assert message.isprintable()
    assert len(message) < 1200


@pytest.mark.parametrize(
    ("name", "timeout", "why"),
    [
        ("ends_its_process", LIMIT, r"died twice \(exit status 0\)"),
        pytest.param("kills_its_process", LIMIT, r"died twice \(signal 9", marks=pytest.mark.thorough),
        pytest.param("never_ends", 4.0, r"timed out after 4 s \(scoring\.timeout\)", marks=pytest.mark.thorough),
    ],
)
def test_one_that_ends_its_process_or_never_ends_is_refused(name, timeout, why):
    with pytest.raises(ValueError, match=why):
        tried(processes=1, timeout=timeout, mine=bad(name))


def test_what_has_no_value_for_made_up_pictures_is_told_and_what_works_is_not(caplog):
    tried(mine=bad("waits"), loud=bad("prints"))
    assert not caplog.records
    for name in ("gives_none", "gives_nan"):
        tried(mine=bad(name))
    assert ["reward mine has no value" in record.getMessage() for record in caplog.records] == [True, True]


def test_each_reward_is_asked_about_a_prompt_that_it_judges():
    prompts = [Prompt(text="a", label="words"), Prompt(text="b", label="numbers")]
    words = reward("repetition", labels=["words"])
    with pytest.raises(ValueError, match=r"reward numbers: .* of prompt 'b'"):
        tried(Response("c"), prompts, words=words, numbers=bad("raises", reward, labels=["numbers"]))


def test_a_run_that_is_to_stop_does_not_wait_for_a_reward():
    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    begun = time.monotonic()
    with pytest.raises(Stop):
        tried(processes=1, mine=bad("never_ends"), check_cancelled=stop)
    assert time.monotonic() - begun < LIMIT
