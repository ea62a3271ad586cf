"""Requests to servers that are slow, lie, send elsewhere or are away: every wait ends, and no token goes astray."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import closing

import pytest
import uvicorn

from burnish.commands.board import bound
from burnish.utils.serving import punctual
from tests.support.tiny_run import burnish

QUERIES = ["?model=a&key=hush", "?api_key=hush", "?access_token=hush", "?X-Amz-Signature=hush", "?code=hush",
           "?access=hush", "?jwt=hush", "?pass=hush", "#key=hush", "?x=1;key=hush"]  # fmt: skip
ADDRESSES = [*(f"http://h/v1{query}" for query in QUERIES), "http://me:hush@h", "http://me:hush@[x",
             "http://me:hush@h:99999", "http://[x", "http://", "http://h:99999/x", "http://h:x"]  # fmt: skip
DOORS = {
    "trackers.mlflow.uri": ["quickstart", "trackers.mlflow.uri='{}'"],
    "algorithm.teachers": ["vlm_quickstart", "algorithm=distill", "algorithm.teachers=[{{url: '{}'}}]"],
    "rewards.judge.url": ["vlm_quickstart", "rewards.judge={{name: remote, url: '{}'}}"],
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_is_none_or_has_a_secret_is_refused_and_not_shown(address, tmp_path):
    doors = DOORS if address.startswith("http://h/v1") else ["rewards.judge.url"]
    for option in doors:
        recipe, *options = (word.format(address) for word in DOORS[option])
        said = burnish("train", recipe, *options, f"output_dir={tmp_path / 'run'}", status=2).message
        assert "hush" not in said
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
    with closing(bound(0)) as listening:
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
