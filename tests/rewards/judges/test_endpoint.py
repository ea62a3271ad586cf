"""Judges behind an address: what is asked and how often, and what becomes of servers that fail, refuse or lie."""

from __future__ import annotations

import base64
import io
import time

import numpy as np
import pytest
from PIL import Image

from burnish.registry import lookup
from burnish.rewards.judges import endpoint_options
from burnish.rewards.judges.endpoint import bounded
from burnish.rewards.judging import judge
from burnish.rewards.text.base import Response
from burnish.types.clips import Clip
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.http import servers
from tests.support.chat_server import listing, pictures_of, question_of, writing
from tests.support.http_servers import json_server
from tests.support.scoring import scorer

CAT = Prompt(text="a cat")
REPLIES = {"Yes": 0.7, "No": 0.2, " yes": 0.04, "Maybe": 0.01}


@pytest.fixture(autouse=True)
def nothing_is_known_of_servers_of_other_tests():
    """A port may be given again."""
    endpoint_options._memory.cache_clear()
    servers.cache_clear()


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def endpoint(kind: str = "flow", **options):
    given = {"model": "m", "deadline": 5.0, "retries": 2} | options
    return lookup(f"{kind} reward", "judge_endpoint")(**given)


def ask(server, *samples, prompt=CAT, **options):
    one = endpoint(url=f"{server.url}/v1", **options)
    one.check([prompt])
    return judge(one, list(samples), [prompt] * len(samples))


def test_what_is_sent_and_what_is_read():
    with json_server(lambda request, count: (200, listing(REPLIES))) as server:
        (verdict,) = ask(server, picture(0), form="yes")
        assert verdict.value == pytest.approx(0.74)
        (request,) = server.got
    assert {name: request[name] for name in ("model", "temperature", "max_tokens", "logprobs", "top_logprobs")} == {
        "model": "m", "temperature": 0, "max_tokens": 1, "logprobs": True, "top_logprobs": 20,
    }  # fmt: skip
    assert question_of(request) == 'Does this image show "a cat"? Answer Yes or No.'
    (address,) = pictures_of(request)
    kind, _, content = address.partition(",")
    assert kind == "data:image/png;base64"
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))) == picture(0)).all()


@pytest.mark.parametrize(
    ("form", "shares", "value"),
    [
        ("vqascore", REPLIES, 0.7),
        ("yes_no", REPLIES, 0.74 / 0.94),
        ("yes_no", {"No": 0.98, "the": 1e-4}, 0.0),  # "Yes" is not listed: it is at most as likely as "the"
        ("scores", {"5": 0.5, "4": 0.25, " 4": 0.05, "1": 0.1, "x": 1e-4}, (2.5 + 1.2 + 0.1) / 0.9),
        ("yes_no", {"It": 0.6, "The": 0.39}, None),
        ("yes_no", {"Yes": 0.4, "The": 0.3}, None),  # a server that lists two tokens: "No" may be as likely as 0.3
        ("yes_no", {"Y": 0.5, "No": 0.4}, None),  # "Yes" may be all of what begins with "Y"
    ],
)  # fmt: skip
def test_a_token_that_is_not_listed_has_a_bound_and_is_not_zero(form, shares, value):
    with json_server(lambda request, count: (200, listing(shares))) as server:
        (verdict,) = ask(server, picture(0), form=form)
    assert verdict.value == (None if value is None else pytest.approx(value))
    assert value is not None or "the judge says something else" in verdict.note or "lies anywhere" in verdict.note


def test_bounds_hold_for_every_distribution_that_fits_the_list():
    random = np.random.default_rng(0)
    tokens = ["Yes", "yes", " Yes", " yes", "Y", "x", "No", "maybe"]
    for _ in range(50):
        shares = dict(zip(tokens, random.dirichlet(np.full(len(tokens), 0.5)), strict=True))
        listed = dict(sorted(shares.items(), key=lambda one: -one[1])[:3])
        true = sum(shares[one] for one in ("Yes", "yes", " Yes", " yes"))
        found = bounded(listed, ("Yes", "yes", " Yes", " yes"))
        assert found.low <= true <= found.high + 1e-12


def test_nothing_is_asked_twice_and_pictures_that_differ_are():
    with json_server(lambda request, count: (200, listing(REPLIES))) as server:
        first = ask(server, picture(0), picture(1), picture(0), form="yes")
        again = ask(server, picture(1), form="yes_no")  # the same list of tokens, read otherwise
        assert len(server.got) == 2
        assert [one.value for one in first] == pytest.approx([0.74] * 3)
        assert again[0].value == pytest.approx(0.74 / 0.94)
        ask(server, picture(0), form="yes", model="other")
        ask(server, picture(0), form="yes", extra={"seed": 3, "logprobs": None, "max_tokens": 2})
        assert len(server.got) == 4
    assert server.got[-1]["seed"] == 3
    assert server.got[-1]["max_tokens"] == 2
    assert "logprobs" not in server.got[-1]


def test_failures_are_tried_again_and_what_can_never_succeed_is_not():
    busy = [(503, {}), (429, {}), (200, listing(REPLIES))]
    with json_server(lambda request, count: busy[count - 1]) as server:
        assert ask(server, picture(0), form="yes")[0].value == pytest.approx(0.74)
        assert len(server.got) == 3
    with json_server(lambda request, count: (400, {"error": "no such model"})) as server:
        (verdict,) = ask(server, picture(0))
        assert verdict.value is None
        assert "no such model" in verdict.fault
        assert len(server.got) == 1


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ({}, "has no choices"),
        ({"choices": [{}]}, "has no message"),
        (writing("Yes"), "no logprobs"),
        (writing(None, refusal="I won't"), "the judge refused: I won't"),
        (writing("", reason="content_filter"), "the judge refused"),
        (listing({"Yes": 0.9, "No": 0.9}), "add up to more than 1"),
        (listing({"Yes": 1.5}), "its logprobs are wrong"),
    ],
)
def test_a_reply_that_is_none_is_missing_with_its_reason(reply, why):
    with json_server(lambda request, count: (200, reply)) as server:
        (verdict,) = ask(server, picture(0), form="yes")
        assert verdict.value is None
        assert why in verdict.note
        assert bool(verdict.fault) == ("refused" not in why)
        ask(server, picture(0), form="yes")
        assert len(server.got) == 2  # nothing of the kind is kept


def test_a_slow_judge_is_given_up_and_no_redirect_is_followed(monkeypatch):
    monkeypatch.setenv("JUDGE_TOKEN", "secret")

    def slow(request, count):
        time.sleep(60)
        return 200, listing(REPLIES)

    with json_server(slow) as server:
        began = time.monotonic()
        verdicts = ask(server, *map(picture, range(4)), deadline=0.3)
        assert time.monotonic() - began < 30
        assert all("timed out" in one.note or "deadline" in one.note for one in verdicts)
    with json_server(lambda request, count: (200, listing(REPLIES))) as other:
        there = ("Location", f"{other.url}/v1")
        with json_server(lambda request, count: (307, {}, there)) as server:
            (verdict,) = ask(server, picture(0), token_variable="JUDGE_TOKEN")
            assert "redirect" in verdict.note
            assert "secret" not in verdict.note
            assert server.headers_seen[0]["Authorization"] == "Bearer secret"
        assert not other.got


def test_of_several_servers_one_that_fails_is_left_alone():
    with (
        json_server(lambda request, count: (500, {})) as bad,
        json_server(lambda r, c: (200, listing(REPLIES))) as good,
    ):
        one = endpoint(url=[bad.url, good.url], form="yes", retries=6, concurrency=2)
        verdicts = judge(one, [picture(i) for i in range(12)], [CAT] * 12)
        assert [verdict.value for verdict in verdicts] == pytest.approx([0.74] * 12)
        assert len(bad.got) <= 4
        assert len(good.got) == 12


def test_pairs_of_a_group_are_sent_both_ways_around():
    def reply(request, count):
        bright = [np.asarray(Image.open(io.BytesIO(base64.b64decode(one.partition(",")[2])))).mean() / 255
                  for one in pictures_of(request)]  # fmt: skip
        first = min(0.9, max(0.05, 0.6 + bright[0] - bright[1]))  # what stands first gets 0.1 more
        return 200, listing({"1": first, "2": 0.95 - first, "x": 1e-4})

    grey = [np.full((4, 4, 3), value, np.uint8) for value in (100, 110, 120)]
    with json_server(reply) as server:
        verdicts = ask(server, *grey, form="pair")
        assert len(server.got) == 6
    values = [verdict.value for verdict in verdicts]
    assert values[0] < values[1] < values[2]
    assert sum(values) == pytest.approx(1.5)
    assert values[1] == pytest.approx(0.5)
    assert "what stood first got 0.6" in verdicts[1].note


def test_a_store_keeps_replies_and_a_budget_ends_asking(tmp_path):
    store = str(tmp_path / "judge.sqlite")
    with json_server(lambda request, count: (200, listing(REPLIES))) as server:
        options = {"form": "yes", "store": store, "cache": 100, "concurrency": 1}
        limits = {"cost": 0.0025, "input_price": 3.0, "output_price": 15.0}  # 300 x 3 + 1 x 15 = 0.000915 each
        verdicts = ask(server, *map(picture, range(5)), **options, budget=limits)
        assert [one.value is None for one in verdicts] == [False] * 3 + [True] * 2
        assert "the budget of the judge is spent (0.002745 of cost)" in verdicts[-1].note
        assert not verdicts[-1].fault
        assert len(server.got) == 3
        endpoint_options._memory.cache_clear()  # another process, or a later run
        again = ask(server, *map(picture, range(5)), **options, budget={"requests": 4})
        assert [one.value is None for one in again] == [False] * 4 + [True]
        assert len(server.got) == 4
    with json_server(lambda request, count: (200, listing(REPLIES, usage=None))) as server:
        (verdict,) = ask(server, picture(9), **options, budget={"tokens": 10_000})
        assert "has no usage" in verdict.fault


def test_scoring_processes_share_a_store_and_its_budget(tmp_path):
    with json_server(lambda request, count: (200, listing(REPLIES))) as server:
        options = {"form": "yes", "store": str(tmp_path / "s"), "budget": {"requests": 5}, "concurrency": 1}
        one = endpoint(url=server.url, **options)
        with scorer(processes=2, judge=one) as scoring:
            pending = [scoring.submit([picture(2 * i), picture(2 * i + 1)], [CAT] * 2) for i in range(4)]
            values = [value for one in pending for value in one.result().reward.tolist()]
        assert sum(np.isnan(values)) == 3
        assert len(server.got) == 5


def test_a_store_is_bounded(tmp_path):
    from burnish.rewards.judges.store import Store

    store = Store(tmp_path / "replies", 10)
    for i in range(25):
        store.put(str(i), "x")
    assert store.get("24") == "x"
    assert 8 <= sum(store.get(str(i)) is not None for i in range(25)) <= 10
    (tmp_path / "other").write_bytes(b"no database" * 100)
    with pytest.raises(ValueError, match="can't keep replies"):
        Store(tmp_path / "other", 10).check()


def test_clips_are_shown_by_frames_and_edits_after_what_they_begin_from():
    given = Prompt(text="make it red", images=(Media.array(picture(7)),))
    clip = Clip(frames=np.stack([picture(i) for i in range(9)]), fps=8.0)
    with json_server(lambda request, count: (200, listing(REPLIES))) as server:
        ask(server, picture(1), prompt=given)
        ask(server, picture(1), prompt=given, conditions=False)
        ask(server, clip, shown_frames=3)
        ask(server, clip, frames={"count": 2})
        shown = [len(pictures_of(request)) for request in server.got]
        assert sorted(shown[:3]) == [1, 2, 3]
        assert shown[3:] == [1, 1]
        first, second = pictures_of(server.got[0])
        assert second == pictures_of(server.got[1])[0] != first


def test_a_written_verdict_and_one_that_was_cut(tmp_path):
    (tmp_path / "q.txt").write_text("Rate {prompt}.")
    options = {"form": "unified_reward", "question_file": str(tmp_path / "q.txt"), "max_new_tokens": 99}
    with json_server(lambda request, count: (200, writing("So. Final Score: 4"))) as server:
        assert ask(server, picture(0), **options)[0].value == pytest.approx(0.8)
        assert server.got[0]["max_tokens"] == 99
        assert "logprobs" not in server.got[0]
        assert question_of(server.got[0]) == "Rate a cat."
    with json_server(lambda request, count: (200, writing("Well, ", reason="length"))) as server:
        assert "raise max_new_tokens" in ask(server, picture(0), **options)[0].note


def test_responses_are_judged_too():
    def reply(request, count):
        return 200, listing({"Yes": 0.6, "No": 0.4} if "right" in question_of(request) else {"No": 1.0})

    with json_server(reply) as server:
        one = endpoint("language", url=server.url)
        question = Prompt(text="2+2?", images=(Media.array(picture(0)),))
        one.check([question])
        values = [v.value for v in judge(one, [Response("4 {prompt}"), Response("5")], [question] * 2)]
        assert values == pytest.approx([0.6, 0.6])
        texts = sorted(question_of(request) for request in server.got)
        assert "Response: 4 {prompt}" in texts[0]
        assert len(pictures_of(server.got[0])) == 1
    film = Prompt(text="?", videos=(Media.movie([Media.array(picture(0))]),))
    with pytest.raises(ValueError, match="sends pictures alone"):
        endpoint("language", url="http://127.0.0.1:9").check([film])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": "http://user:word@host"}, "token_variable"),
        ({"token_variable": "NO_SUCH_TOKEN"}, "which is not set"),
        ({"budget": {"requests": 3}}, "without store"),
        ({"budget": {}, "store": "s"}, "limits nothing"),
        ({"budget": {"cost": 1.0}, "store": "s"}, "counted by prices"),
        ({"store": "no/such/folder/s"}, "store of reward judge_endpoint is no/such/folder/s"),
        ({"form": "unified_reward"}, "give it as question_file"),
    ],
)
def test_what_can_t_work_is_refused_before_anything_is_asked(options, why):
    one = endpoint(**{"url": "http://127.0.0.1:9"} | options)
    with pytest.raises(ValueError, match=why):
        one.check([CAT])
