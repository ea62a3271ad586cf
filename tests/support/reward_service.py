"""``burnish serve-reward`` in a process of its own."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from tests.support.forked import Forked

SERVE = "import sys\nfrom burnish.cli import main\nsys.exit(main(['serve-reward', *sys.argv[1:]]))"
LIMIT = 60.0  # seconds to start, on a machine that is busy


class Started:
    """A service that listens."""

    def __init__(self, *arguments: str, token: str | None = None) -> None:
        options = [] if token is None else ["--token-variable", "SERVICE_TOKEN"]
        words = [sys.executable, "-c", SERVE, *arguments, "--port", "0", *options]
        reading, writing = os.pipe()
        with open(writing, "wb") as output:
            environment = os.environ | ({} if token is None else {"SERVICE_TOKEN": token})
            self.process = Forked(words, env=environment, stdout=output)
        self.said = os.fdopen(reading)  # as long as it may say more
        watch = threading.Timer(LIMIT, self.process.kill)
        watch.start()
        line = self.said.readline()
        watch.cancel()
        found = re.search(r"http://\S+:(\d+)", line)
        assert found, f"it said {line!r}"
        self.url, self.port = found.group(0), int(found.group(1))

    def end(self) -> int:
        """Ask it to end; its exit code."""
        os.kill(self.process.pid, signal.SIGTERM)
        try:
            return self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)
        self.said.close()


@contextmanager
def served(*arguments: str, token: str | None = None) -> Iterator[Started]:
    one = Started(*arguments, token=token)
    try:
        yield one
    finally:
        one.kill()


def post(url: str, body: Any, **headers: str) -> tuple[int, dict, dict]:
    """Status, JSON and headers of a reply."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {name: value.encode("latin-1") for name, value in ({"Content-Type": "application/json"} | headers).items()}
    reply = httpx2.post(url, content=content, headers=given, timeout=LIMIT)
    return reply.status_code, json.loads(reply.content or b"{}"), dict(reply.headers)


def get(url: str, **headers: str) -> tuple[int, str]:
    given = {name: value.encode("latin-1") for name, value in headers.items()}
    reply = httpx2.get(url, headers=given, timeout=LIMIT)
    return reply.status_code, reply.text


def raw(port: int, content: bytes, *, wait: float = LIMIT) -> bytes:
    """What is answered to some bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        connection.sendall(content)
        found = b""
        try:
            while chunk := connection.recv(65536):
                found += chunk
        except TimeoutError:
            pass
        return found
