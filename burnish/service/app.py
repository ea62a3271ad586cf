"""The HTTP side of a reward service: POST /score, GET /health, GET /metrics."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from burnish.options.service import ServiceOptions
from burnish.rewards.scoring import Scorer
from burnish.rewards.wire import Limits, decode_request, encode_verdict
from burnish.service.batching import Batcher, Full, Memory
from burnish.service.numbers import Numbers
from burnish.types.prompt import Prompt
from burnish.utils.json_text import parse_json
from burnish.utils.serving import is_loopback

DECODING = 2  # requests that are decoded at once
RETRY_AFTER = 1  # seconds
# Of a request that is refused so much is still read, and dropped: clients that are sending would else lose the reply
DROPPED, PATIENCE = 256 << 20, 2.0  # bytes, and seconds


class Refused(Exception):
    """A request is not answered with scores."""

    def __init__(self, status: int, why: str, **headers: str) -> None:
        super().__init__(why)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}


class Service:
    """Takes requests, within limits."""

    def __init__(self, scorer: Scorer, options: ServiceOptions, token: str | None) -> None:
        self.scorer, self.options, self._token = scorer, options, token
        self.memory = Memory(options.memory_mb * 2**20)
        self.numbers = Numbers()

    def app(self) -> Starlette:
        """The application, for an ASGI server."""
        return Starlette(
            routes=[
                Route("/score", self.score, methods=["POST"]),
                Route("/health", self.health, methods=["GET"]),
                Route("/metrics", self.metrics, methods=["GET"]),
            ],
            exception_handlers={HTTPException: self._unknown},
            lifespan=self._running,
        )

    @asynccontextmanager
    async def _running(self, app: Starlette) -> AsyncIterator[None]:
        self.batcher = Batcher(self.scorer, self.options, self.numbers.scored)
        self._decoders = CapacityLimiter(DECODING)
        running = asyncio.create_task(self.batcher.run())
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def score(self, request: Request) -> Response:
        begun, taken = time.perf_counter(), _Taken(self.memory)
        try:
            self._admit(request)
            body = await self._body(request, taken)
            samples, prompts = await to_thread.run_sync(self._decode, body, taken.take, limiter=self._decoders)
            del body
            verdicts = await self.batcher.verdicts(samples, prompts)
            # ASCII: a reward's note may hold half of a surrogate pair, which UTF-8 can't
            content = json.dumps({"scores": [encode_verdict(verdict) for verdict in verdicts]}, allow_nan=False)
            reply = Response(content, media_type="application/json")
            self.numbers.answered(200, time.perf_counter() - begun)
            return reply
        except Full as error:
            refused = Refused(503, str(error), Retry_After=str(RETRY_AFTER))
        except Refused as error:
            refused = error
        except ClientDisconnect:
            return self._refusal(Refused(400, "the client went away"))
        finally:
            taken.give_back()
        await _drop_rest(request)
        return self._refusal(refused)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        try:
            self._admit(request)
        except Refused as refused:
            return self._refusal(refused)
        return PlainTextResponse(self.numbers.text(self.batcher.waiting, self.memory.taken))

    def _admit(self, request: Request) -> None:
        if self._token is None:
            # it listens on loopback, which a page in a browser can reach by a name of its own
            named = request.headers.get("Host", "")
            if not is_loopback(re.sub(r":\d+$", "", named).strip("[]")):
                raise Refused(
                    421,
                    f"the Host header is {named[:100]!r}; without a token only names of this machine's loopback are "
                    "answered, such as localhost; set one with --token-variable",
                )
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Refused(
                401, "the token is missing or wrong; send Authorization: Bearer TOKEN", WWW_Authenticate="Bearer"
            )

    async def _body(self, request: Request, taken: _Taken) -> bytearray:
        most = int(self.options.max_body_mb * 2**20)
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, "the request must be application/json")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise Refused(415, "the request must not be compressed")
        too_large = Refused(413, f"the request has more than {self.options.max_body_mb:g} MiB (service.max_body_mb)")
        if int(request.headers.get("Content-Length") or 0) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.options.read_timeout):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > most:
                        raise too_large
                    taken.take(len(chunk))
                    body += chunk
        except TimeoutError:
            raise Refused(408, f"the request took more than {self.options.read_timeout:g} s to arrive") from None
        return body

    def _decode(self, body: bytearray, reserve: Callable[[int], None]) -> tuple[list[Any], list[Prompt]]:
        """In a thread, so that others are answered meanwhile."""
        if sum(body.count(sign) for sign in b",[{") > self.options.max_values:
            raise Refused(413, f"the request has more than {self.options.max_values} values (service.max_values)")
        limits = Limits(samples=self.options.max_samples, pixels=self.options.max_pixels, reserve=reserve)
        try:
            return decode_request(parse_json(body), limits)
        except ValueError as error:
            raise Refused(400, f"the request can't be read: {str(error)[:500]}") from None

    def _refusal(self, refused: Refused) -> Response:
        self.numbers.answered(refused.status)
        headers = refused.headers | {"Connection": "close"}  # what is left of the request is not read
        return JSONResponse({"error": str(refused)}, status_code=refused.status, headers=headers)

    async def _unknown(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "registered for these"
        return self._refusal(
            Refused(error.status_code, f"{error.detail}; known are POST /score, GET /health and /metrics")
        )


async def _drop_rest(request: Request) -> None:
    """Read what a client still sends, for a while, and keep nothing of it."""
    count = 0
    with suppress(TimeoutError, ClientDisconnect, RuntimeError):  # it took too long, went away, or has sent all
        async with asyncio.timeout(PATIENCE):
            async for chunk in request.stream():
                count += len(chunk)
                if count > DROPPED:
                    return


class _Taken:
    """What one request has taken of the memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._count = memory, 0

    def take(self, count: int) -> None:
        self._memory.take(count)
        self._count += count

    def give_back(self) -> None:
        self._memory.give_back(self._count)
