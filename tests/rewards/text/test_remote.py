"""A reward server on this machine: what is sent, what is read, and what happens when it fails."""

import base64
import io
import re
import time
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from burnish.rewards.judging import judge
from burnish.rewards.text.base import Response
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.http import LARGEST
from tests.support.asked import reward
from tests.support.http_servers import JsonServer, json_server


def lengths(message, count):
    return 200, {"rewards": [len(text) for text in message["responses"]]}


@pytest.fixture
def server() -> Iterator[JsonServer]:
    with json_server(lengths) as one:
        yield one


def ask(server: JsonServer, *texts: str, prompt: Prompt | None = None, **options) -> list:
    one = reward("remote", url=server.url, **{"deadline": 20, **options})
    return judge(one, [Response(text) for text in texts], [prompt or Prompt(text="?")] * len(texts))


def test_what_is_sent_is_lightrfts_protocol(server):
    pictures = [np.full((4, 4, 3), level, dtype=np.uint8) for level in (0, 200)]
    seen = Prompt(text="<image><image>same?", answer="no", images=tuple(map(Media.array, pictures)))
    one = reward("remote", url=server.url)
    verdicts = judge(one, [Response("yes"), Response("no!!")], [seen, Prompt(text="hm?")])
    assert [verdict.value for verdict in verdicts] == [3, 4]
    (message,) = server.got
    assert message["queries"] == ["<image><image>same?yes", "hm?no!!"]
    assert message["prompts"] == ["<image><image>same?", "hm?"]
    assert message["references"] == ["no", None]
    assert message["images"][1] is None
    for sent, picture in zip(message["images"][0], pictures, strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(sent)))), picture)


def test_what_nobody_has_is_not_sent(server):
    ask(server, "a")
    assert set(server.got[0]) == {"queries", "prompts", "responses"}
    seen = Prompt(text="<image>", images=(Media.array(np.zeros((2, 2, 3), dtype=np.uint8)),))
    ask(server, "a", prompt=seen, images=False)
    assert "images" not in server.got[1]


def test_a_dead_server_is_remembered_from_one_batch_to_the_next(server):
    with json_server(lambda message, count: (500, {})) as broken:
        one = reward("remote", url=[broken.url, server.url], deadline=20)
        for _ in range(10):
            assert [verdict.value for verdict in judge(one, [Response("abc")], [Prompt(text="?")])] == [3]
        assert 1 <= len(broken.got) <= 3


def test_large_batches_are_several_requests_in_order(server):
    texts = ["x" * n for n in range(10)]
    verdicts = ask(server, *texts, batch_size=3, concurrency=2)
    assert [verdict.value for verdict in verdicts] == list(range(10))
    assert sorted(len(message["responses"]) for message in server.got) == [1, 3, 3, 3]


def test_a_failure_is_tried_again(server):
    server.reply = lambda message, count: (503, {}) if count < 3 else (200, {"rewards": [0.5]})
    assert ask(server, "a")[0].value == 0.5
    assert len(server.got) == 3


@pytest.mark.parametrize(
    ("reply", "why", "requests"),
    [
        ((500, {}), "gave up after 2 tries .* status 500", 2),
        ((404, {}), "status 404", 1),
        ((200, b"not json"), "gave up after 2 tries", 2),
        ((200, b"[" * 200_000), "gave up after 2 tries .* nested too deeply", 2),
        ((200, b"\xff\xfe\xff"), "gave up after 2 tries", 2),
        ((200, b" " * (LARGEST + 1)), "gave up after 2 tries .* more than 16 MiB", 2),
        ((200, {"rewards": {"0": 1}}), "no list 'rewards'", 1),
        ((200, {"scores": [1]}), "no list 'rewards'", 1),
        ((200, {"rewards": [1]}), "1 numbers for 2 responses", 1),
        ((200, [1, 2]), "no list 'rewards'", 1),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_failed_request_is_missing_never_zero(server, reply, why, requests):
    server.reply = lambda message, count: reply
    verdicts = ask(server, "a", "b", retries=1)
    assert [verdict.value for verdict in verdicts] == [None, None]
    assert all(re.search(why, verdict.note) for verdict in verdicts)
    assert len(server.got) == requests


def test_one_null_takes_no_other_with_it(server):
    server.reply = lambda message, count: (200, {"rewards": [1, None, "x", True, 0]})
    assert [verdict.value for verdict in ask(server, *"abcde")] == [1, None, None, None, 0]


def test_the_deadline_ends_every_wait(server):
    server.reply = lambda message, count: time.sleep(60) or (200, {"rewards": [1]})
    start = time.monotonic()
    (verdict,) = ask(server, "a", deadline=0.3)
    assert verdict.value is None
    assert "within 0.3 s (deadline)" in verdict.note
    assert time.monotonic() - start < 30


def test_nobody_there_is_missing():
    one = reward("remote", url="http://127.0.0.1:9/score", deadline=5, retries=1)
    (verdict,) = judge(one, [Response("a")], [Prompt(text="?")])
    assert verdict.value is None
    assert "gave up after 2 tries" in verdict.note


def test_a_token_comes_from_the_environment_and_is_no_option(server, monkeypatch):
    one = reward("remote", url=server.url, token_variable="SCORE_TOKEN")
    with pytest.raises(ValueError, match="'SCORE_TOKEN', which is not set"):
        one.check([])
    monkeypatch.setenv("SCORE_TOKEN", "secret")
    one.check([])
    judge(one, [Response("a")], [Prompt(text="?")])
    assert server.headers_seen[0]["Authorization"] == "Bearer secret"
    assert "secret" not in repr(one)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_takes_no_token_with_it(server, monkeypatch, status):
    monkeypatch.setenv("SCORE_TOKEN", "secret")
    with json_server(lengths) as elsewhere:
        server.reply = lambda message, count: (status, b"", ("Location", elsewhere.url))
        (verdict,) = ask(server, "a", token_variable="SCORE_TOKEN", retries=1)
        assert elsewhere.headers_seen == []
    assert verdict.value is None
    assert f"status {status} redirect to http://127.0.0.1 not followed" in verdict.note
    assert len(server.got) == 1


@pytest.mark.parametrize("token", ["two\nlines", "tail\r\n", "clé"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(server, monkeypatch, token):
    monkeypatch.setenv("SCORE_TOKEN", token)
    with pytest.raises(ValueError, match="SCORE_TOKEN") as refused:
        reward("remote", url=server.url, token_variable="SCORE_TOKEN").check([])
    assert token not in str(refused.value)


def test_a_password_in_the_address_is_refused_and_not_shown():
    with pytest.raises(ValueError, match="use token_variable") as refused:
        reward("remote", url="http://me:secret@127.0.0.1/score").check([])
    assert "secret" not in str(refused.value)


def test_an_address_must_be_one():
    with pytest.raises(ValueError, match="url"):
        reward("remote", url="file:///etc/passwd")


def test_openrlhfs_protocol(server):
    server.reply = lambda message, count: (200, {"rewards": [0.5], "extra_logs": {"x": [1]}})
    (verdict,) = ask(server, "yes", prompt=Prompt(text="same? ", answer="no"), protocol="openrlhf")
    assert verdict.value == 0.5
    assert server.got == [{"query": ["same? yes"], "prompts": ["same? "], "labels": ["no"]}]


def test_of_two_servers_the_one_that_is_there_answers(server):
    one = reward("remote", url=["http://127.0.0.1:9/score", server.url], deadline=20, batch_size=1)
    verdicts = judge(one, [Response("a"), Response("bb")], [Prompt(text="?")] * 2)
    assert [verdict.value for verdict in verdicts] == [1, 2]
