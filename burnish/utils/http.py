"""JSON over HTTP to servers that are not trusted: every wait ends, no redirect is followed, and a reply is bounded.

And servers of ours: sockets, whether an address is local, and deadlines for connections without a request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from burnish.utils.addresses import secret_in
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.user_code import awaited

if TYPE_CHECKING:
    import uvicorn

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0  # seconds between tries, doubled each time
LONGEST_REST = 30.0  # seconds for which a server that fails is left alone, while there are others
LARGEST = 16 << 20  # bytes of a reply
SHOWN = 200  # characters of a server's own explanation in a message
BACKLOG = 2048  # connections that wait to be accepted
HEAD = 32 << 10  # bytes of a request's headers
TRY_AGAIN = (408, 425, 429)  # the server is busy; other 4xx are errors of the request


class HttpError(OSError):
    """A request that failed; the message says why, without token."""

    def __init__(self, why: str, *, status: int | None = None, pause: float = 0.0) -> None:
        """Args: ``status`` is the server's, if it answered; ``pause`` are the seconds that it asks to wait for."""
        super().__init__(why)
        self.status, self.pause = status, pause

    @property
    def is_final(self) -> bool:
        """Whether the server would refuse the same request again."""
        return self.status is not None and self.status < 500 and self.status not in TRY_AGAIN


def check_url(url: str, option: str) -> None:
    """Refuse an address that is none, or that would be saved with a secret in it.

    Raises:
        UserError: it has a password or a key, which is not shown, no host, or a port that there is not.
    """
    if held := secret_in(url):
        raise UserError(f"{option} contains {held}, which would be saved; use token_variable")
    try:
        address = urlsplit(url)
        host, _ = address.hostname, address.port
    except ValueError:  # a bracket that is not closed, a port that is no number
        host = None
    if not host:
        raise UserError(
            f"{option} is {url!r:.200}, which is not an address; write http://HOST:PORT or https://HOST/PATH"
        )


def read_token(variable: str | None, option: str) -> str | None:
    """The token in an environment variable; None where none is named.

    Raises:
        UserError: the variable is not set, or holds what no header can hold; the token is not shown.
    """
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise UserError(f"{option} is {variable!r}, which is not set; export it")
    if not token.isascii() or not token.isprintable():  # or the error message about the header would show it
        raise UserError(f"{variable} ({option}) holds a line break or is not plain ASCII; export it again")
    return token


class _Server:
    """One of several servers that do the same work."""

    def __init__(self, url: str) -> None:
        self.url, self.under_way, self.failures, self.rests_until = url, 0, 0, 0.0  # failures in a row


@dataclass
class Servers:
    """Servers that do the same work. Any number of threads may post to them at once.

    A request goes to the server with the fewest under way. One that fails rests for a while, which doubles with each
    failure in a row, and others get its requests meanwhile.
    """

    urls: Sequence[str]
    token: str | None = field(default=None, repr=False)  # for the Authorization header, to these servers alone
    largest: int = LARGEST  # bytes of a reply
    _lock: threading.Lock = field(init=False, repr=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._servers = [_Server(url) for url in self.urls]

    def post_json(self, body: Any, *, deadline: float, retries: int, patience: float = math.inf, path: str = "") -> Any:
        """Post JSON and return the JSON of the reply.

        Args:
            body: is sent as JSON.
            deadline: seconds for everything, tries, pauses and reading of replies included.
            retries: tries after the first one, at any server: one is away, busy, fails, or its reply is no JSON.
            patience: seconds for one try.
            path: is added to the URL.

        Raises:
            HttpError: there is no usable reply; the message says why.
        """
        content, until = json.dumps(body).encode(), time.monotonic() + deadline
        why, tries = "no time was left for a request", 0
        while tries <= retries and (left := until - time.monotonic()) > 0:
            server = self._begin()
            tries += 1
            pause = 0.0
            try:
                reply = request(
                    "POST", server.url + path, content=content, seconds=min(left, patience), token=self.token,
                    largest=self.largest,
                )  # fmt: skip
                return parse_json(reply)
            except (HttpError, ValueError) as error:
                if isinstance(error, HttpError) and error.is_final:
                    raise
                reason = str(error) if isinstance(error, HttpError) else f"its reply is not JSON: {error}"
                why = reason if len(self._servers) == 1 else f"{server.url}: {reason}"
                pause = max(getattr(error, "pause", 0.0), min(FIRST_PAUSE * 2 ** (tries - 1), LONGEST_PAUSE))
            finally:
                self._end(server, failed=pause > 0)
            if tries <= retries and all(server.rests_until > time.monotonic() for server in self._servers):
                time.sleep(max(0.0, min(pause * random.uniform(0.5, 1.0), until - time.monotonic())))
        count = "1 try" if tries == 1 else f"{tries} tries"
        raise HttpError(f"gave up after {count} within {round(deadline, 2):g} s (deadline): {why}")

    def _begin(self) -> _Server:
        """The one with the fewest requests under way, of those that don't rest; the first to rise where all do."""
        now = time.monotonic()
        with self._lock:
            server = min(self._servers, key=lambda one: (max(one.rests_until - now, 0.0), one.under_way))
            server.under_way += 1
        return server

    def _end(self, server: _Server, *, failed: bool) -> None:
        with self._lock:
            server.under_way -= 1
            rest = min(FIRST_PAUSE * 2**server.failures, LONGEST_REST)
            server.failures = server.failures + 1 if failed else 0
            server.rests_until = time.monotonic() + rest if failed else 0.0


@cache
def servers(urls: tuple[str, ...], token: str | None) -> Servers:
    """Those of a process: which of them fail, and rest, is known from one batch to the next.

    Args:
        urls: of servers that do the same work.
        token: for the Authorization header.
    """
    return Servers(urls, token=token)


def request(
    method: str,
    url: str,
    *,
    content: bytes | None,
    seconds: float,
    token: str | None = None,
    largest: int = LARGEST,
) -> bytes:
    """The content of the reply to one request of JSON, without another try.

    Raises:
        HttpError: it failed, the server refused it, or the reply is too large or late.
    """
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}  # no small reply becomes a large one
    if content is not None:
        headers["Content-Type"] = "application/json"
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"

    async def within() -> bytes:
        # one deadline for look-up, connection and reply: a client's own timeouts begin anew with every byte
        async with asyncio.timeout(seconds):
            return await _ask(method, url, content, headers, largest)

    try:
        answer: bytes = awaited(within(), "http")  # a look-up of a name may outlast the deadline
        return answer
    except TimeoutError:
        raise HttpError(f"timed out after {seconds:.3g} s") from None
    except HttpError as error:  # a server may repeat what it was sent
        why = str(error) if token is None else str(error).replace(token, "***")
        raise HttpError(why, status=error.status, pause=error.pause) from None


async def _ask(method: str, url: str, content: bytes | None, headers: Mapping[str, str], largest: int) -> bytes:
    import httpx2

    try:
        async with (
            httpx2.AsyncClient(follow_redirects=False, timeout=None, verify=_trusted()) as client,
            client.stream(method, url, content=content, headers=headers) as reply,
        ):
            if reply.is_redirect:
                address = urlsplit(reply.headers.get("Location", ""))  # its path may be secret
                where = f"{address.scheme}://{address.hostname}" if address.hostname else "another path"
                raise HttpError(
                    f"status {reply.status_code} redirect to {where} not followed", status=reply.status_code
                )
            read = bytearray()
            async for chunk in reply.aiter_raw():
                read += chunk
                if len(read) > largest:
                    raise HttpError(f"its reply has more than {largest >> 20} MiB")
            if reply.is_success:
                return bytes(read)
            text = "".join(c if c.isprintable() else " " for c in read[: 4 * SHOWN].decode(errors="replace")).strip()
            why = f"status {reply.status_code} {reply.reason_phrase[:80]}: {text[:SHOWN]}".rstrip(": ")
            asked = reply.headers.get("Retry-After", "").strip()  # seconds; a date is not waited for
            raise HttpError(why, status=reply.status_code, pause=float(asked) if asked.isdigit() else 0.0)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        if isinstance(error, HttpError | TimeoutError):
            raise
        raise HttpError(str(error) or type(error).__name__) from None


@cache
def _trusted() -> Any:
    """Certificates of this machine, read once."""
    import httpx2

    return httpx2.create_ssl_context()


def is_loopback(host: str) -> bool:
    """Whether a name or an address reaches this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def punctual(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol for HTTP, with a deadline for the head of each request and for what follows an answer.

    uvicorn itself waits for ever for a first request, for the end of a head, and for a body that nobody reads.

    Args:
        seconds: until a connection without a request is closed.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Punctual(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def _watch(self) -> None:
            answers = self.cycle is not None and not self.cycle.response_complete  # which has deadlines of its own
            if answers and self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            elif not answers and self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self.transport.close)

    return Punctual


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at an address: from now on clients wait, while the rest is loaded."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        raise UserError(f"can't listen at {host}, port {port}: {error.strerror}; choose another --port") from None
    return listening


def server(app: Any, *, connections: int, idle: int, farewell: int) -> uvicorn.Server:
    """A server.

    Args:
        app: that answers.
        connections: at most.
        idle: seconds that one may be.
        farewell: seconds that requests get when the server ends.
    """
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=punctual(idle),
            ws="none",
            lifespan="auto",
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=connections,
            timeout_keep_alive=idle,
            timeout_graceful_shutdown=farewell,
            h11_max_incomplete_event_size=HEAD,
        )
    )


def serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """Answer until a signal ends it."""
    # uvicorn raises the signal that ended it once more, when all requests are answered
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    server.run(sockets=[listening])
