"""Requests to servers that are slow, lie, send elsewhere or are away: every wait ends, and no token goes astray."""

import asyncio
import socket
import threading
import time
import zlib
from contextlib import closing

import pytest
import uvicorn

from burnish.utils.addresses import redacted
from burnish.utils.http import LARGEST, HttpError, Servers, bound, punctual, read_token
from tests.support.http_servers import dripping, json_server
from tests.support.tiny_run import burnish


def post(url, body, *, token=None, largest=LARGEST, deadline=20, retries=0):
    return Servers([url], token=token, largest=largest).post_json(body, deadline=deadline, retries=retries)


def right(message, count):
    return 200, {"got": message}


@pytest.mark.parametrize(("head", "drop"), [
    (b"", b""), (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
], ids=["silent", "headers", "content", "chunks"])  # fmt: skip
def test_a_server_that_drips_is_left_at_the_deadline(head, drop):
    start = time.monotonic()
    with dripping(head, drop, most=2000) as url, pytest.raises(HttpError, match=r"0\.4 s"):
        post(url, {}, deadline=0.4, retries=5)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("status", [301, 303, 307, 308])
def test_no_token_travels_on_a_redirect_which_is_not_followed(status):
    with json_server(right) as elsewhere:
        with json_server(lambda message, count: (status, b"", ("Location", f"{elsewhere.url}/x"))) as server:
            with pytest.raises(HttpError, match=f"status {status} .*127.0.0.1"):
                post(server.url, {}, retries=3, token="secret")
            assert len(server.got) == 1
        assert elsewhere.headers_seen == []


def test_a_refusal_says_what_the_server_says_but_never_the_token():
    with json_server(lambda message, count: (401, {"error": "no such token: hush-hush"})) as server:
        with pytest.raises(HttpError, match=r"status 401 .*no such token: \*\*\*") as refused:
            post(server.url, {}, retries=3, token="hush-hush")
        assert len(server.got) == 1
        assert refused.value.is_final
        assert "hush-hush" not in repr(Servers([server.url], token="hush-hush"))


@pytest.mark.parametrize(("content", "headers", "largest", "why"), [
    (b"nonsense", (), 10_000, "not JSON"), (b"[" * 5000, (), 10_000, "deep"), (b" " * 5000, (), 1000, "more than"),
    (zlib.compress(b" " * 10_000_000), (("Content-Encoding", "deflate"),), 10_000, "more than|not JSON"),
], ids=["nonsense", "deep", "large", "bomb"])  # fmt: skip
def test_a_reply_that_is_none_is_an_error_within_bounds(content, headers, largest, why):
    with json_server(lambda message, count: (200, content, *headers)) as server:
        with pytest.raises(HttpError, match=f"2 tries .*({why})"):
            post(server.url, {}, retries=1, largest=largest)
        assert len(server.got) == 2


@pytest.mark.parametrize("token", [None, "a\nb", "clé"])
def test_a_token_that_can_not_be_sent_is_refused_and_not_shown(monkeypatch, token):
    monkeypatch.delenv("SOME_TOKEN", raising=False)
    if token:
        monkeypatch.setenv("SOME_TOKEN", token)
    with pytest.raises(ValueError, match="SOME_TOKEN") as refused:
        read_token("SOME_TOKEN", "token_variable")
    assert token is None or token not in str(refused.value)
    monkeypatch.setenv("SOME_TOKEN", "plain")
    assert read_token("SOME_TOKEN", "token_variable") == "plain"


QUERIES = ["?model=a&key=hush", "?api_key=hush", "?access_token=hush", "?X-Amz-Signature=hush", "?code=hush",
           "?access=hush", "?jwt=hush", "?pass=hush", "#key=hush", "?x=1;key=hush"]  # fmt: skip
ADDRESSES = [*(f"http://h/v1{query}" for query in QUERIES), "http://me:hush@h", "http://me:hush@[x",
             "http://me:hush@h:99999", "http://[x", "http://", "http://h:99999/x", "http://h:x"]  # fmt: skip
DOORS = {
    "trackers.mlflow": ["quickstart", "trackers.mlflow.arguments={{tracking_uri: '{}'}}"],
    "algorithm.teachers": ["vlm_quickstart", "algorithm={{name: distill, over: sampled, teachers: [{{url: '{}'}}]}}"],
    "environment.servers": ["vlm_quickstart", "environment={{name: tools, servers: {{mine: '{}'}}}}"],
    "rewards.judge.url": ["vlm_quickstart", "rewards.judge={{name: remote, url: '{}'}}"],
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_is_none_or_has_a_secret_is_refused_and_not_shown(address, tmp_path):
    doors = DOORS if address.startswith("http://h/v1") else ["rewards.judge.url"]
    for option in doors:
        recipe, *options = (word.format(address) for word in DOORS[option])
        said = burnish("train", recipe, *options, f"output_dir={tmp_path / 'run'}", status=2).message
        assert "hush" not in said + redacted(f"no answer of {address}")
        assert option.rpartition(".")[2] in said


SECONDS = 0.3
HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def slow(scope, receive, send):
    await asyncio.sleep(3 * SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def port():
    """Of a server of ours, which gives a request so many seconds to come."""
    with closing(bound("127.0.0.1", 0)) as listening:
        options = {"lifespan": "off", "log_level": "critical", "timeout_keep_alive": 9}
        server = uvicorn.Server(uvicorn.Config(slow, http=punctual(SECONDS), **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = server.force_exit = True
        thread.join(9)


def ends(client, drip):
    """Whether the server closes a connection on which something drips, in time."""
    until = time.monotonic() + 60 * SECONDS
    client.settimeout(0.05)
    while time.monotonic() < until:
        try:
            client.sendall(drip)
            if client.recv(100) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize(("head", "drip"), [(b"", b""), (b"GET", b""), (HEAD + b"X: ", b"y")])
def test_a_connection_without_a_request_is_closed(port, head, drip):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head)
        assert ends(client, drip)
