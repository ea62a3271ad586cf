"""A reward service: POST /score, GET /health, GET /metrics. Requests of several clients are scored together."""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from anyio import CapacityLimiter, to_thread
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from burnish.options import ServiceOptions
from burnish.rewards.base import RewardInputs
from burnish.rewards.remote import ScoreData, ScoreReply, ScoreRequest, problem, shortened
from burnish.rewards.scoring import Scorer
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from burnish.types.samples import OUTCOMES, execution_of
from burnish.utils.http import is_loopback

AT_ONCE = 2  # batches under way, one of which is scored while the next one is sent; and requests that are decoded
RETRY_AFTER = 1  # seconds
PATIENCE = 2.0  # seconds for what a refused client still sends: closing at once would lose it the reply


@dataclass(eq=False)
class _Asked:
    samples: Sequence[Any]
    prompts: Sequence[Prompt]
    scores: asyncio.Future[list[ScoreData]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Service:
    """Takes requests, within limits."""

    def __init__(self, scorer: Scorer, options: ServiceOptions, token: str | None) -> None:
        self.scorer, self.options, self._token = scorer, options, token
        self.waiting = 0  # samples that are not answered yet
        self.counts: defaultdict[str, float] = defaultdict(float)  # by the names of /metrics

    def app(self) -> Starlette:
        """The application, for an ASGI server."""
        return Starlette(
            routes=[
                Route("/score", self.score, methods=["POST"]),
                Route("/health", self.health, methods=["GET"]),
                Route("/metrics", self.metrics, methods=["GET"]),
            ],
            exception_handlers={HTTPException: self._refused},
            lifespan=self._running,
        )

    @asynccontextmanager
    async def _running(self, app: Starlette) -> AsyncIterator[None]:
        self._queue: asyncio.Queue[_Asked] = asyncio.Queue()
        self._decoders, self._collecting = CapacityLimiter(AT_ONCE), asyncio.Lock()
        workers = [asyncio.create_task(self._score_batches()) for _ in range(AT_ONCE)]
        try:
            yield
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """All counts, in the text format that Prometheus reads."""
        self._admit(request)
        lines = [f"{name} {count:g}" for name, count in sorted(self.counts.items())]
        return PlainTextResponse("\n".join([*lines, f"burnish_queue_samples {self.waiting}"]) + "\n")

    async def score(self, request: Request) -> Response:
        begun = time.perf_counter()
        self._admit(request)
        body = await self._body(request)
        samples, prompts = await to_thread.run_sync(self._decode, body, limiter=self._decoders)
        if self.waiting + len(samples) > self.options.queue:
            raise HTTPException(
                503,
                f"{self.waiting} samples are waiting, and the queue holds {self.options.queue} (service.queue)",
                {"Retry-After": str(RETRY_AFTER)},
            )
        asked = _Asked(samples, prompts)
        self.waiting += len(samples)
        try:
            self._queue.put_nowait(asked)
            scores = await asked.scores
        finally:
            self.waiting -= len(samples)
        reply = ScoreReply(scores=scores)
        self.counts['burnish_requests_total{status="200"}'] += 1
        self.counts["burnish_request_seconds_sum"] += time.perf_counter() - begun
        return Response(reply.model_dump_json(), media_type="application/json")

    def _admit(self, request: Request) -> None:
        if self._token is None:
            # it listens on loopback, which a page in a browser can reach by a name of its own
            host = request.headers.get("Host", "")
            if not is_loopback(re.sub(r":\d+$", "", host).strip("[]")):
                raise HTTPException(
                    421,
                    f"the Host header is {host[:100]!r}; without a token only names of this machine's loopback are "
                    "answered, such as localhost; set one with --token-variable",
                )
            return
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), self._token.encode()):
            why = "the token is missing or wrong; send Authorization: Bearer TOKEN"
            raise HTTPException(401, why, {"WWW-Authenticate": "Bearer"})

    async def _body(self, request: Request) -> bytearray:
        if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "the request must be application/json")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise HTTPException(415, "the request must not be compressed")
        body = bytearray()
        try:
            async with asyncio.timeout(self.options.read_timeout):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.options.max_body_mb * 2**20:
                        limit = f"{self.options.max_body_mb:g} MiB (service.max_body_mb)"
                        raise HTTPException(413, f"the request has more than {limit}")
        except TimeoutError:
            why = f"the request took more than {self.options.read_timeout:g} s to arrive"
            raise HTTPException(408, why) from None
        except ClientDisconnect:
            raise HTTPException(400, "the client went away") from None
        return body

    def _decode(self, body: bytearray) -> tuple[list[Any], list[Prompt]]:
        """In a thread, so that others are answered meanwhile."""
        try:
            return ScoreRequest.model_validate_json(body).read(self.options.max_pixels)
        except ValueError as error:
            why = problem(error) if isinstance(error, ValidationError) else str(error)
            raise HTTPException(400, f"the request can't be read: {why[:500]}") from None

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "registered for these"
        with suppress(TimeoutError, ClientDisconnect, RuntimeError):  # it took too long, went away, or has sent all
            async with asyncio.timeout(PATIENCE):
                async for _ in request.stream():
                    pass
        self.counts[f'burnish_requests_total{{status="{error.status_code}"}}'] += 1
        known = "; known are POST /score, GET /health and /metrics" if error.status_code in (404, 405) else ""
        headers = {**(error.headers or {}), "Connection": "close"}  # what is left of the request is not read
        return JSONResponse({"error": f"{error.detail}{known}"}, status_code=error.status_code, headers=headers)

    async def _score_batches(self) -> None:
        """Score what is asked, requests that arrive within a moment together, until cancelled."""
        while True:
            async with self._collecting:
                batch = [await self._queue.get()]
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.options.window):
                        while sum(len(asked.samples) for asked in batch) < self.options.batch_size:
                            batch.append(await self._queue.get())
            try:
                scores = await self._scores(batch)
            except Exception as error:
                for asked in batch:
                    if not asked.scores.done():
                        asked.scores.set_exception(error)
                continue
            for asked in batch:
                own, scores = scores[: len(asked.samples)], scores[len(asked.samples) :]
                if not asked.scores.done():  # the client has not gone away
                    asked.scores.set_result(own)

    async def _scores(self, batch: Sequence[_Asked]) -> list[ScoreData]:
        """On the samples of several requests, which are compared with those of the same prompt and request alone."""
        samples = [sample for asked in batch for sample in asked.samples]
        if not samples:
            return []
        prompts = [prompt for asked in batch for prompt in asked.prompts]
        group: dict[tuple[int, str], int] = {}
        numbers = [group.setdefault((i, p.uid), len(group)) for i, asked in enumerate(batch) for p in asked.prompts]
        scores = await asyncio.wrap_future(self.scorer.submit(samples, prompts, RewardInputs(group=numbers)))
        for label, execution in execution_of(scores.ran, [False] * len(samples)).items():
            self.counts[f'burnish_samples_total{{reward="{label}"}}'] += len(execution.seconds)
            for outcome in OUTCOMES:
                name = f'burnish_outcomes_total{{reward="{label}",outcome="{outcome}"}}'
                self.counts[name] += getattr(execution, outcome)
        return [_score(scores, row) for row in range(len(samples))]


def _score(scores: Scores, row: int) -> ScoreData:
    """What is answered about a sample: the sum as the value, and each component by name."""
    named = dict(zip(scores.names, scores.components[row].tolist(), strict=True)) | scores.further[row]
    answer = next(iter(scores.answers[row].values()), None)
    return ScoreData(
        value=None if scores.missing[row] else float(scores.reward[row]),
        values={name: number for name, number in named.items() if not math.isnan(number)},
        note=shortened(scores.notes[row]),
        fault=shortened(scores.faults[row].partition("\n")[0]),
        answer=None if answer is None else shortened(answer),
    )
