"""burnish serve-reward: rewards for other machines, by HTTP: POST /score, GET /health, GET /metrics.

Requests of several clients are scored together.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anyio import CapacityLimiter, to_thread
from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from burnish.config.checks import problems
from burnish.config.errors import wrong_choice
from burnish.config.load import checked, find_recipe, labelled, read_recipe
from burnish.config.names import Context
from burnish.config.plugins import open_plugins, with_whole_paths
from burnish.config.tasks import DEFAULT, TASKS, task_named
from burnish.config.yaml_text import merge, nest, read_overrides
from burnish.options import ScoringOptions, ServiceOptions
from burnish.registry import Choice, fields, known, names, options
from burnish.rewards.base import RewardInputs
from burnish.rewards.mixing import MixingOptions
from burnish.rewards.remote import ScoreData, ScoreReply, ScoreRequest, bytes_of, problem, shortened
from burnish.types.prompt import Prompt
from burnish.types.samples import OUTCOMES
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.http import bound, is_loopback, read_token, serve, server

if TYPE_CHECKING:
    from burnish.rewards.scoring import Scorer
    from burnish.types.rollout import Scores

AT_ONCE = 2  # batches under way, one of which is scored while the next one is sent; and requests that are decoded
RETRY_AFTER = 1  # seconds
HELD = 4 << 30  # bytes of decoded images: a request of 64 MiB could have thousands of large plain ones
PATIENCE = 2.0  # seconds for what a refused client still sends: closing at once would lose it the reply


def serve_reward(
    served: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, 0, 65535] = 8000,
    token_variable: str | None = None,
    task: str | None = None,
) -> int:
    """Serve rewards to other machines.

    A run asks it by the reward remote: rewards.remote.url=http://127.0.0.1:8000

    Examples:
        burnish serve-reward ocr --port 8000
        burnish serve-reward pickscore pickscore.device=cuda --port 8000
        burnish serve-reward numeric format format.weight=0.1                   their weighted sum
        burnish serve-reward my_recipe.yaml --host 10.0.0.5 --token-variable TOKEN

    Args:
        served (NAME|RECIPE|OPTION=VALUE): rewards by name, or a .yaml file with rewards, and options such as
            ocr.weight=1 or service.queue=100
        host: address to listen at
        port: 0 takes a free one
        token_variable (NAME): environment variable with the token clients must send
        task: whose rewards the names are, where both tasks have some of that name
    """
    from burnish.rewards.scoring import Scorer

    token = read_token(token_variable, "--token-variable")
    if token is None and not is_loopback(host):
        raise UserError(
            f"--host is {host}, where others can reach the service; set a token in an environment variable and name it "
            "by --token-variable, or listen at 127.0.0.1"
        )
    config = load_service(served, task=task)
    for reward in config.rewards.values():
        reward.check([])
    scorer = Scorer(config.rewards, config.scoring, config.mixing, goes_on=True)  # clients decide
    with closing(bound(host, port)) as listening, closing(scorer):
        scorer.start()
        app = Service(scorer, config.service, token).app()
        answering = server(app, connections=config.service.max_connections, idle=5, farewell=30)
        address = f"[{host}]" if ":" in host else host
        print(
            f"Serving {', '.join(config.rewards)} at http://{address}:{listening.getsockname()[1]}; Ctrl-C ends it",
            flush=True,
        )
        serve(answering, listening)
    return 0


@options
class ServiceConfig:
    """What is served, and how."""

    task: str
    """Whose rewards they are."""
    plugins: list[str] = Field(default_factory=list)
    """Code of yours, as in a recipe."""
    rewards: dict[str, Any]
    """What is served, by label."""
    scoring: ScoringOptions = Field(default_factory=ScoringOptions)
    """How rewards are computed."""
    mixing: MixingOptions = Field(default_factory=MixingOptions)
    """How several of them become one."""
    service: ServiceOptions = Field(default_factory=ServiceOptions)
    """What the service takes at once."""


SECTIONS = tuple(fields(ServiceConfig))  # of a recipe, that a service reads


def load_service(served: Sequence[str], *, task: str | None = None) -> ServiceConfig:
    """Read what a service is asked to serve.

    Args:
        served: names of rewards, recipes (names, or paths of .yaml files), and ``option=value``.
        task: whose rewards the names are; None takes a recipe's, or the one that knows the names.

    Raises:
        ConfigError: with all problems.
    """
    given = {
        option if option.partition(".")[0] in SECTIONS else f"rewards.{option}": value
        for option, value in read_overrides([one for one in served if "=" in one]).items()
    }
    tree: dict[str, Any] = {}
    labels = []
    for one in [one for one in served if "=" not in one]:
        if one.endswith((".yaml", ".yml")) or (not _kinds(one) and "/" in one):
            content = read_recipe(find_recipe(one))
            tree = merge(tree, {name: value for name, value in content.items() if name in SECTIONS})
        else:
            labels.append(one)
    tree = merge(merge(tree, {"rewards": {label: {} for label in labels}}), with_whole_paths(nest(given)))
    open_plugins(tree.get("plugins", []))
    name = task or tree.get("task") or _task_of(labels)
    tree = labelled(tree) | {"task": name}
    config = task_named(name).config
    context = Context([(Path(served[0]).name if served else "", tree)], given, tree, config)
    rewards = checked(dict[str, Annotated[Any, Choice(config.reward_kind)]], tree["rewards"], context, "rewards")
    found: ServiceConfig = checked(ServiceConfig, tree | {"rewards": {}}, context)
    found.rewards = rewards
    unread = (why for label, one in rewards.items() for why in problems(found, given, one, f"rewards.{label}."))
    if complaints := [*_problems(found), *unread]:
        raise ConfigError(complaints)
    return found


def _problems(config: ServiceConfig) -> Iterator[str]:
    for label, reward in config.rewards.items():
        if reward.on_failure != "missing":
            yield (
                f"rewards.{label}.on_failure is {reward.on_failure}, which is for the run to decide that asks; leave "
                "it out, and set it for that run's reward remote"
            )
        if asked := reward.required_fields():
            yield f"rewards.{label} asks for {', '.join(asked)}, which clients don't send; remove it"
    if not any(reward.counts for reward in config.rewards.values()):
        yield "no reward with a weight is given; name one, as in: burnish serve-reward ocr"


def _kinds(name: str) -> list[str]:
    """The tasks that know a reward of this name, of those with the same rewards the first."""
    tasks = {one.config.reward_kind: task for task, one in reversed(TASKS.items())}
    return [task for task in TASKS if task in tasks.values() and known(task_named(task).config.reward_kind, name)]


def _task_of(labels: Sequence[str]) -> str:
    """The one task whose rewards all of these are."""
    every = [name for task in TASKS.values() for name in names(task.config.reward_kind)]
    for label in labels:
        if not _kinds(label):
            raise ConfigError(wrong_choice("reward", label, sorted(set(every))))
    shared = [task for task in TASKS if all(task in _kinds(label) for label in labels)]
    if labels and len(shared) != 1:
        way_out = f"say of which task, by --task {' or --task '.join(shared)}" if shared else "serve them one by one"
        raise ConfigError(f"{' and '.join(labels)} are not rewards of one task alone; {way_out}")
    return shared[0] if labels else DEFAULT


@dataclass(eq=False)
class _Asked:
    samples: Sequence[Any]
    prompts: Sequence[Prompt]
    scores: asyncio.Future[list[ScoreData]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Service:
    """Takes requests, within limits."""

    def __init__(self, scorer: Scorer, options: ServiceOptions, token: str | None) -> None:
        self.scorer, self.options, self._token = scorer, options, token
        self.waiting, self.held = 0, 0  # samples that are not answered yet, and bytes of their images
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
            most = self.options.queue
            raise _later(f"{self.waiting} samples are waiting, and the queue holds {most} (service.queue)")
        asked, size = _Asked(samples, prompts), bytes_of(samples)
        self.waiting += len(samples)
        self.held += size
        try:
            self._queue.put_nowait(asked)
            scores = await asked.scores
        finally:
            self.waiting -= len(samples)
            self.held -= size
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
            return ScoreRequest.model_validate_json(body).read(self.options.max_pixels, HELD - self.held)
        except BufferError as error:
            raise _later(str(error)) from None
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
        for label, (_, flags) in (item for row in scores.ran for item in row.items()):
            self.counts[f'burnish_samples_total{{reward="{label}"}}'] += 1
            for outcome, flag in OUTCOMES.items():
                self.counts[f'burnish_outcomes_total{{reward="{label}",outcome="{outcome}"}}'] += bool(flags & flag)
        return [_score(scores, row) for row in range(len(samples))]


def _later(why: str) -> HTTPException:
    return HTTPException(503, why, {"Retry-After": str(RETRY_AFTER)})


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
