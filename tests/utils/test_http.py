"""Requests to servers that are slow, lie, send elsewhere or are away: every wait ends, and no token goes astray."""

import os
import re
import threading
import time
import zlib

import pytest

from burnish.config import load
from burnish.utils.errors import UserError
from burnish.utils.http import LARGEST, HttpError, Servers, check_url, read_token
from tests.support.http_servers import dripping, json_server


def post_json(url, body, *, token=None, largest=LARGEST, **limits):
    return Servers([url], token=token, largest=largest).post_json(body, **limits)


def right(message, count):
    return 200, {"got": message}


def test_json_goes_out_and_comes_back_from_many_threads_at_once():
    found: dict[int, object] = {}

    def ask(number: int) -> None:
        found[number] = post_json(server.url, {"n": number}, deadline=20, retries=0)

    with json_server(right) as server:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {number: {"got": {"n": number}} for number in range(20)}


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["silent", "headers", "content", "chunks"],
)
def test_a_server_that_drips_is_left_at_the_deadline(head, drop):
    start = time.monotonic()
    with dripping(head, drop) as url, pytest.raises(HttpError, match=r"within 0.4 s \(deadline\): timed out"):
        post_json(url, {}, deadline=0.4, retries=5)
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status):
    with json_server(right) as elsewhere:
        with json_server(lambda message, count: (status, b"", ("Location", f"{elsewhere.url}/x"))) as server:
            with pytest.raises(HttpError, match=f"status {status} redirect to http://127.0.0.1 not followed"):
                post_json(server.url, {}, deadline=20, retries=3, token="secret")
            assert len(server.got) == 1
        assert elsewhere.headers_seen == []


def test_a_refusal_says_what_the_server_says_but_never_the_token():
    with json_server(lambda message, count: (401, {"error": "no such token: hush-hush"})) as server:
        with pytest.raises(HttpError, match=r"status 401 .*no such token: \*\*\*") as refused:
            post_json(server.url, {}, deadline=20, retries=3, token="hush-hush")
        assert len(server.got) == 1
        assert refused.value.is_final
        assert "hush-hush" not in repr(Servers([server.url], token="hush-hush"))


def test_a_busy_server_is_asked_again_when_it_says(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    replies = [(503, {}, ("Retry-After", "3")), (429, {}), (200, [1])]
    with json_server(lambda message, count: replies[count - 1]) as server:
        assert post_json(server.url, {}, deadline=20, retries=2) == [1]
    assert [pause for pause in slept if pause > 2] == [3.0]


@pytest.mark.parametrize(
    ("content", "headers", "why"),
    [
        (b"nonsense", (), "not JSON"),
        (b"[" * 5000, (), "nested too deeply"),
        (b" " * 5000, (), "more than 0 MiB"),
        (zlib.compress(b" " * 10_000_000), (("Content-Encoding", "deflate"),), "more than 0 MiB|not JSON"),
    ],
    ids=["nonsense", "deep", "large", "bomb"],
)
def test_a_reply_that_is_none_is_an_error_within_bounds(content, headers, why):
    with json_server(lambda message, count: (200, content, *headers)) as server:
        with pytest.raises(HttpError, match=f"gave up after 2 tries .*({why})"):
            post_json(server.url, {}, deadline=20, retries=1, largest=10_000 if why != "more than 0 MiB" else 1000)


def test_no_cookie_is_kept():
    with json_server(lambda message, count: (200, [], ("Set-Cookie", "who=me"))) as server:
        for _ in range(2):
            post_json(server.url, {}, deadline=20, retries=0)
        assert all("Cookie" not in headers for headers in server.headers_seen)


def test_of_several_servers_one_that_fails_rests_and_others_get_its_requests():
    with json_server(lambda m, c: (500, {})) as broken, json_server(right) as well:
        servers = Servers([broken.url, well.url])
        for _ in range(10):
            assert servers.post_json({}, deadline=20, retries=3) == {"got": {}}
        assert len(well.got) == 10
        assert 1 <= len(broken.got) <= 3


def test_a_server_that_failed_must_show_that_it_is_well_before_it_gets_a_request():
    with json_server(lambda m, c: (500, {}) if c == 1 else right(m, c)) as first, json_server(right) as second:
        servers = Servers([first.url, second.url], health=lambda url: f"{url}/health")
        servers.post_json({}, deadline=20, retries=1)
        time.sleep(0.3)
        for _ in range(3):
            servers.post_json({}, deadline=20, retries=0)
        assert first.asked.count("/health") >= 1


def test_a_server_that_hangs_takes_its_patience_and_not_all_the_time():
    with dripping(b"", b"") as hangs, json_server(right) as well:
        servers = Servers([hangs, well.url])
        start = time.monotonic()
        assert servers.post_json({}, deadline=30, retries=1, patience=0.3) == {"got": {}}
        assert time.monotonic() - start < 10


def test_nobody_there_says_so():
    with pytest.raises(HttpError, match="gave up after 2 tries within 5 s"):
        post_json("http://127.0.0.1:9/", {}, deadline=5, retries=1)


def test_a_forked_process_has_a_loop_of_its_own():
    with json_server(right) as server:
        post_json(server.url, {}, deadline=20, retries=0)
        child = os.fork()
        if child == 0:
            os._exit(0 if post_json(server.url, {}, deadline=20, retries=0) == {"got": {}} else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("token", "why"), [(None, "not set"), ("a\nb", "line break"), ("clé", "plain ASCII")])
def test_a_token_that_can_not_be_sent_is_refused_and_not_shown(monkeypatch, token, why):
    monkeypatch.delenv("SOME_TOKEN", raising=False)
    if token:
        monkeypatch.setenv("SOME_TOKEN", token)
    with pytest.raises(ValueError, match=f"SOME_TOKEN.*{why}") as refused:
        read_token("SOME_TOKEN", "token_variable")
    assert token is None or token not in str(refused.value)


@pytest.mark.parametrize("url", ["http://[x", "http://", "http://h:99999/x", "https://:8000", "http://h:x"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UserError, match=r"^url of reward remote is .* which is no address; write http://HOST:PORT"):
        check_url(url, "url of reward remote")


@pytest.mark.parametrize("url", ["http://me:hush@h", "http://me:hush@[x", "http://me:hush@h:99999"])
def test_a_password_in_an_address_is_refused_and_not_shown(url):
    with pytest.raises(UserError, match="user name or password") as caught:
        check_url(url, "url")
    assert "hush" not in str(caught.value)
    check_url("http://h:8000/p@th", "url")


SECRETS = ["key", "api_key", "access_token", "X-Amz-Signature", "code", "access", "jwt", "pass"]


@pytest.mark.parametrize("query", [*(f"?model=a&{name}=hush" for name in SECRETS), "#key=hush", "?x=1;key=hush"])
@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("url", lambda address: check_url(address, "url")),
        ("trackers.mlflow.uri", lambda address: load("quickstart", [f"trackers.mlflow.uri={address}"])),
        (
            "algorithm.teachers",
            lambda address: load("vlm_quickstart", ["algorithm=distill", f"algorithm.teachers=[{{url: '{address}'}}]"]),
        ),
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_shown(option, given, query):
    with pytest.raises(UserError, match=rf"{re.escape(option)}.*=\.\.\., which would be saved") as caught:
        given(f"http://h/v1{query}")
    assert "hush" not in str(caught.value)


def test_an_address_without_a_secret_is_none():
    check_url("http://h/?model=a&api-version=1&bypass=1", "url")
