"""Scorers that answer too often, too seldom, twice or for another request: no sample gets another's reward."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from burnish.options import ScoringOptions
from burnish.registry import lookup
from burnish.rewards import lanes
from burnish.rewards.base import Verdict
from burnish.rewards.judging import judge
from burnish.rewards.process import ScoringProcess
from burnish.rewards.scoring import Scorer
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt
from tests.support.asked import reward
from tests.support.http_servers import body_of, send, serving
from tests.support.misbehaving import Misbehaving

TIMES = 1000
PROMPT = Prompt(text="?")


def own(samples: list[Response]) -> list[Verdict]:
    """Each sample's own reward, which no other sample has."""
    return [Verdict(float(sample.text)) for sample in samples]


class MisbehavingScorer(Misbehaving, ScoringProcess):
    """Dies, or is found out, after some requests, and another one takes its place."""

    started = itertools.count()

    def __init__(self, rewards: Any, timeout: float) -> None:
        self._rewards, self._timeout = rewards, timeout
        drawn = random.Random(next(self.started))
        wrong = ["before", "after", "garbage", "nothing", "less", "more"]
        late = [[], ["again"], ["after"], ["before"]]
        instead = ([drawn.choice(wrong), *drawn.choice([[], ["right"]])] for _ in itertools.count())
        script = (next(instead) if drawn.random() < 0.3 else ["right", *drawn.choice(late)] for _ in itertools.count())
        super().__init__(script, lambda label, samples, prompts, given: own(samples))


@pytest.mark.parametrize("merge", [False, True])
def test_no_sample_gets_the_reward_of_another_from_processes(monkeypatch, merge):
    monkeypatch.setattr(lanes, "ScoringProcess", MisbehavingScorer)
    function = lookup("language reward", "function")(path="tests.support.failing_rewards:forks")
    monkeypatch.setattr(type(function), "has_weights", merge)
    options = ScoringOptions(processes=2, merge=merge, max_failures=None)
    drawn, number, right = random.Random(0), itertools.count(), 0
    batches = [[Response(str(next(number))) for _ in range(drawn.randint(1, 4))] for _ in range(TIMES // 2)]
    with Scorer({"it": function}, options) as scorer:
        for first in range(0, len(batches), 5):
            together = batches[first : first + 5]
            pending = [scorer.submit(batch, [PROMPT] * len(batch)) for batch in together]
            for batch, scores in zip(together, [one.result(60) for one in pending], strict=True):
                for sample, value, absent in zip(batch, scores.reward.tolist(), scores.missing.tolist(), strict=True):
                    assert absent or value == float(sample.text)
                    right += not absent
    assert right > 0.5 * next(number)


def test_no_sample_gets_the_reward_of_another_from_a_server():
    drawn = random.Random(0)
    before: list[float] = [-1.0]

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

    texts = [str(number) for number in range(2 * TIMES)]
    with serving(answer) as url:
        one = reward("remote", url=url, batch_size=2, concurrency=4, retries=0, deadline=120)
        verdicts = judge(one, [Response(text) for text in texts], [PROMPT] * len(texts))
    assert all(verdict.value in (None, float(text)) for text, verdict in zip(texts, verdicts, strict=True))
    assert sum(verdict.value is not None for verdict in verdicts) > 0.3 * len(texts)
