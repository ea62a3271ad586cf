"""No client holds a connection on which it asks for nothing."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import uvicorn

from burnish.commands.board import bound
from burnish.utils.serving import punctual

SECONDS = 0.3
HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def slow(scope, receive, send) -> None:
    await asyncio.sleep(3 * SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with closing(bound(0)) as listening:
        server = uvicorn.Server(
            uvicorn.Config(slow, http=punctual(SECONDS), lifespan="off", log_level="critical", timeout_keep_alive=9)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = server.force_exit = True
        thread.join(9)


def ended(client: socket.socket, drip: bytes) -> float:
    """Seconds until the server closes a connection on which something drips."""
    begun = time.monotonic()
    client.settimeout(0.05)
    while time.monotonic() < begun + 20 * SECONDS:
        try:
            client.sendall(drip)
            if client.recv(100) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - begun


def answer(client: socket.socket) -> bytes:
    client.settimeout(20 * SECONDS)
    content = b""
    while not content.endswith(b"ok"):
        content += client.recv(1000)
    return content


@pytest.mark.parametrize(("head", "drip"), [(b"", b""), (b"GET", b""), (HEAD + b"X: ", b"y")])
def test_a_connection_without_a_request_is_closed(port, head, drip):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head)
        assert SECONDS / 2 < ended(client, drip) < 10 * SECONDS


@pytest.mark.parametrize("more", [b"", b"Content-Length: 1000000\r\n"])
def test_a_request_gets_its_answer_and_what_drips_afterwards_is_closed(port, more):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(HEAD + more + b"\r\n")
        assert answer(client).startswith(b"HTTP/1.1 200 OK")
        if not more:  # the connection is kept
            client.sendall(HEAD + b"\r\n")
            assert answer(client).startswith(b"HTTP/1.1 200 OK")
        assert ended(client, b"y") < 10 * SECONDS
