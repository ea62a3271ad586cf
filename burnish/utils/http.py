"""JSON over HTTP to servers that are not trusted: every wait ends, no redirect is followed, and a reply is bounded."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from http.cookiejar import DefaultCookiePolicy
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0  # seconds between tries, doubled each time
LONGEST_REST = 30.0  # seconds for which a server that fails is left alone, while there are others
HEALTH_PATIENCE = 2.0  # seconds for the answer of a health check
LARGEST = 16 << 20  # bytes of a reply
SHOWN = 200  # characters of a server's own explanation in a message
TRY_AGAIN = (408, 425, 429)  # the server is busy; other 4xx are errors of the request
OF_THIS_MACHINE = ("169.254.169.254", "metadata.google.internal")  # a proxy would be told of its own machine
SECRET = re.compile(r"key|token|secret|password|signature|credential|^(auth|sig|pwd)$", re.IGNORECASE)
GRACE = 1.0  # seconds after a deadline for the thread that watches it to say so


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
    """Refuse an address that is none, or that would be saved with a password.

    Raises:
        UserError: it has a user name or password, no host, or a port that there is not; a password is not shown.
    """
    try:
        address = urlsplit(url)
        given, host, _ = "@" in address.netloc, address.hostname, address.port
        secret = next((name for name, _ in parse_qsl(address.query) if SECRET.search(name)), None)
    except ValueError:  # a bracket that is not closed, a port that is no number
        given, host, secret = "@" in url, None, None
    if not given and not host:
        raise UserError(f"{option} is {url!r:.200}, which is no address; write http://HOST:PORT or https://HOST/PATH")
    if given:
        raise UserError(f"{option} contains a user name or password, which would be saved; use token_variable")
    if secret is not None:
        raise UserError(f"{option} has {secret}=... in its address, which would be saved; use token_variable")


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


@dataclass
class _Server:
    """One of several servers that do the same work."""

    url: str
    under_way: int = 0
    failures: int = 0  # in a row
    rests_until: float = 0.0

    def rest(self) -> None:
        """Leave it alone for a while, which doubles with every failure in a row."""
        pause = min(FIRST_PAUSE * 2**self.failures, LONGEST_REST)
        self.failures += 1
        self.rests_until = time.monotonic() + pause


@dataclass
class Servers:
    """Servers that do the same work. Any number of threads may post to them at once.

    A request goes to the server with the fewest under way. One that fails rests for a while, which doubles each time,
    and others get its requests meanwhile.
    """

    urls: Sequence[str]
    token: str | None = field(default=None, repr=False)  # for the Authorization header, to these servers alone
    largest: int = LARGEST  # bytes of a reply
    health: Callable[[str], str] | None = None  # URL that says whether a server is well again, of its own URL
    _servers: list[_Server] = field(init=False, repr=False)
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
        why, tries, pause = "no time was left for a request", 0, FIRST_PAUSE
        while tries <= retries and (left := until - time.monotonic()) > 0:
            server = self._choose(until)
            tries += 1
            try:
                answer = request(
                    "POST", server.url + path, content=content, seconds=min(left, patience), token=self.token,
                    largest=self.largest,
                )  # fmt: skip
                found = _json(answer)
            except HttpError as error:
                self._settle(server, well=error.is_final)
                if error.is_final:
                    raise
                why = str(error) if len(self._servers) == 1 else f"{server.url}: {error}"
                wait = max(error.pause, pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, LONGEST_PAUSE)
                if tries <= retries and not self._any_well():
                    time.sleep(max(0.0, min(wait, until - time.monotonic())))
                continue
            except BaseException:
                self._settle(server, well=True)
                raise
            self._settle(server, well=True)
            return found
        raise HttpError(f"gave up after {tries} tries within {round(deadline, 2):g} s (deadline): {why}")

    def _choose(self, until: float) -> _Server:
        """The one with the fewest requests under way, of those that don't rest; the first to rise where all do."""
        now = time.monotonic()
        with self._lock:
            order = sorted(self._servers, key=lambda one: (max(one.rests_until - now, 0.0), one.under_way))
            chosen = order[0]
            chosen.under_way += 1
        # it has failed before and there are others: it must first show that it is well
        if chosen.failures and len(order) > 1 and not self._is_well(chosen, min(HEALTH_PATIENCE, until - now)):
            self._settle(chosen, well=False)
            with self._lock:
                now = time.monotonic()
                chosen = min(self._servers, key=lambda one: (max(one.rests_until - now, 0.0), one.under_way))
                chosen.under_way += 1
        return chosen

    def _is_well(self, server: _Server, seconds: float) -> bool:
        if self.health is not None:
            try:
                request("GET", self.health(server.url), content=None, seconds=max(seconds, 0.01), token=self.token)
            except HttpError:
                return False
        return True

    def _settle(self, server: _Server, *, well: bool) -> None:
        with self._lock:
            server.under_way -= 1
            if well:
                server.failures, server.rests_until = 0, 0.0
            else:
                server.rest()

    def _any_well(self) -> bool:
        """Whether a server does not rest: then there is no reason to pause."""
        now = time.monotonic()
        with self._lock:
            return any(server.rests_until <= now for server in self._servers)


@cache
def servers(urls: tuple[str, ...], token: str | None, health: str | None) -> Servers:
    """Those of a process: which of them fail, and rest, is known from one batch to the next.

    Args:
        urls: of servers that do the same work.
        token: for the Authorization header.
        health: path that says whether a server is well again; None asks none.
    """
    return Servers(urls, token=token, health=None if health is None else lambda url: url.rstrip("/") + health)


def request(
    method: str,
    url: str,
    *,
    content: bytes | None,
    seconds: float,
    token: str | None = None,
    more: Mapping[str, str] | None = None,
    largest: int = LARGEST,
) -> bytes:
    """The content of the reply to one request of JSON, without another try; ``more`` headers are sent with it.

    Raises:
        HttpError: it failed, the server refused it, or the reply is too large or late.
    """
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}  # no small reply becomes a large one
    headers |= more or {}
    if content is not None:
        headers["Content-Type"] = "application/json"
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        return _loop().run(lambda client: _ask(client, method, url, content, headers, largest), seconds)
    except TimeoutError:
        raise HttpError(f"timed out after {seconds:.3g} s") from None
    except HttpError as error:
        if token is None or token not in str(error):
            raise
        why = str(error).replace(token, "***")  # a server may repeat what it was sent
        raise HttpError(why, status=error.status, pause=error.pause) from None


async def _ask(
    client: Any, method: str, url: str, content: bytes | None, headers: Mapping[str, str], largest: int
) -> bytes:
    import httpx2

    try:
        async with client.stream(method, url, content=content, headers=headers) as reply:
            if reply.is_redirect:
                raise HttpError(
                    f"status {reply.status_code} redirect to {_site(reply.headers.get('Location', ''))} not followed",
                    status=reply.status_code,
                )
            read = bytearray()
            async for chunk in reply.aiter_raw():
                read += chunk
                if len(read) > largest:
                    raise HttpError(f"its reply has more than {largest >> 20} MiB")
            if not reply.is_success:
                raise _refusal(reply.status_code, reply.reason_phrase, read, reply.headers.get("Retry-After", ""))
            return bytes(read)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        if isinstance(error, HttpError):
            raise
        raise HttpError(str(error) or type(error).__name__) from None


def _site(location: str) -> str:
    """Where a redirect leads, without what may be secret."""
    try:
        where = urlsplit(location)
        return f"{where.scheme}://{where.hostname}"
    except ValueError:
        return "no address"


def _refusal(status: int, reason: str, content: bytes | bytearray, retry_after: str) -> HttpError:
    """What a server says in place of an answer."""
    text = "".join(c if c.isprintable() else " " for c in content[: 4 * SHOWN].decode(errors="replace"))
    said = f": {text[:SHOWN]}" if text.strip() else ""
    return HttpError(f"status {status} {reason[:80]}{said}".rstrip(), status=status, pause=_seconds(retry_after))


def _seconds(retry_after: str) -> float:
    """Of a Retry-After header: seconds, or a date."""
    try:
        return max(float(retry_after), 0.0) if retry_after.strip().isdigit() else _until(retry_after)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _until(date: str) -> float:
    return max(parsedate_to_datetime(date).timestamp() - time.time(), 0.0) if date else 0.0


def _json(content: bytes) -> Any:
    try:
        return parse_json(content)
    except ValueError as error:
        raise HttpError(f"its reply is not JSON: {error}") from None


class _Loop:
    """An event loop in a thread of its own: only there can one deadline end a look-up, a connection and a reply."""

    def __init__(self) -> None:
        import httpx2

        self.client = httpx2.AsyncClient(
            follow_redirects=False,
            timeout=None,  # the deadline of a whole request is set below
            # on a kept connection, a reply too many would be taken for that to the next request
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            mounts={f"http://{host}": None for host in OF_THIS_MACHINE},
        )
        self.client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="http", daemon=True).start()

    def run(self, ask: Callable[[Any], Coroutine[Any, Any, T]], seconds: float) -> T:
        """What ``ask`` returns of the client.

        Raises:
            TimeoutError: time was up.
        """

        async def bounded() -> T:
            async with asyncio.timeout(seconds):
                return await ask(self.client)

        running = asyncio.run_coroutine_threadsafe(bounded(), self.loop)
        try:
            return running.result(seconds + GRACE)
        except FutureTimeout:
            raise TimeoutError from None
        finally:
            running.cancel()


_loops: list[_Loop] = []  # none or one
_starting = threading.Lock()


def _loop() -> _Loop:
    with _starting:
        if not _loops:
            _loops.append(_Loop())
        return _loops[0]


def _forget() -> None:
    """In a forked process, which does not have the loop's thread."""
    global _starting
    _starting = threading.Lock()
    _loops.clear()


os.register_at_fork(after_in_child=_forget)
