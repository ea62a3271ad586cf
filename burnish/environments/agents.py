"""Agents with a loop of their own: programs that ask an OpenAI-compatible address, where the policy answers."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from pydantic import Field

from burnish.data.conversation import converse
from burnish.environments.base import POLL, Environment, Episode, Observation
from burnish.environments.call_formats import calls_in
from burnish.options import Count, Seconds
from burnish.registry import Choice, register
from burnish.types.media import Kind, Media
from burnish.types.messages import read_tools
from burnish.types.prompt import Message, Prompt
from burnish.utils.errors import UserError
from burnish.utils.http import bound
from burnish.utils.json_text import parse_json

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

MODEL = "policy"
OVER = "the dialogue is over"
STARTING = threading.Lock()  # programs begin in threads


@register("environment", "agent")
class Agent(Environment):
    """A program of yours, started once per dialogue. The policy writes the chat completions that it asks for."""

    command: list[str] = Field(min_length=1)
    """The program and its arguments, such as [python, agent.py]. It finds the address in OPENAI_BASE_URL and
    OPENAI_API_KEY, where the openai package looks. Its standard input is a JSON object with messages and seed, and
    with answer and further keys of the record. If the last line that it prints is a number, that is the reward of its
    last response. If it fails, the rewards of this dialogue are missing."""
    calls: Annotated[Any, Choice("call format")] = None
    """How the model writes calls of tools, if the program sends tools; see the environment tools."""
    max_turns: Count = 16
    """Responses per dialogue; the program is ended when it asks for another."""
    concurrency: Count = 8
    """Programs that are waited for at the same time."""
    deadline: Seconds | None = 300.0
    """Seconds that the program may take between a response and its next request or its end. null waits for ever."""

    def episode(self) -> Episode:
        with STARTING:
            return _Program(self, self.address)

    @cached_property
    def address(self) -> Address:
        """Where the programs ask; it is opened for the first of them."""
        return Address()

    def check(self) -> None:
        if shutil.which(self.command[0]) is None:
            raise UserError(
                f"environment.command begins with {self.command[0]!r}, which is not a program that can be run"
            )

    def close(self) -> None:
        if address := vars(self).pop("address", None):
            address.close()


@dataclass
class Request:
    """A chat completion that a program waits for."""

    prompt: Prompt
    stream: bool  # the response is one event of a stream
    answer: Future[dict[str, Any]]


class Address:
    """A server on this machine alone. Each program has a key, by which its requests are told from those of others."""

    def __init__(self) -> None:
        import uvicorn  # these for runs with agents alone
        from starlette.applications import Starlette
        from starlette.routing import Route

        self.asked: dict[str, queue.SimpleQueue[Request]] = {}
        routes = [Route("/v1/models", _models), Route("/v1/chat/completions", self._complete, methods=["POST"])]
        listening = bound("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"  # as OPENAI_BASE_URL
        self.server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=routes), log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1
            )
        )
        threading.Thread(target=self.server.run, args=([listening],), daemon=True).start()

    def close(self) -> None:
        """Answer nothing any more."""
        self.server.should_exit = True

    async def _complete(self, request: HttpRequest) -> Response:
        """A chat completion, once the policy has written it."""
        from starlette.responses import Response

        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        waiting = self.asked.get(key)
        if waiting is None:
            return _refused(401, f"the API key is not in OPENAI_API_KEY, or {OVER}")
        try:
            asked = _read(parse_json(await request.body()))
        except (ValueError, TypeError, AttributeError) as error:
            return _refused(400, f"the request {error}")
        waiting.put(asked)
        answer = asyncio.wrap_future(asked.answer)
        while not answer.done():
            if key not in self.asked:
                return _refused(410, OVER)
            await asyncio.wait([answer], timeout=POLL)
        message = answer.result()
        about = {"id": f"chatcmpl-{secrets.token_hex(8)}", "created": int(time.time()), "model": MODEL}
        choice = {"index": 0, "finish_reason": "tool_calls" if "tool_calls" in message else "stop", "logprobs": None}
        if asked.stream:
            about |= {"object": "chat.completion.chunk", "choices": [choice | {"delta": message}]}
            return Response(f"data: {json.dumps(about)}\n\ndata: [DONE]\n\n", media_type="text/event-stream")
        return _reply(about | {"object": "chat.completion", "choices": [choice | {"message": message}]})


async def _models(_: HttpRequest) -> Response:
    return _reply({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "burnish"}]})


def _refused(status: int, why: str) -> Response:
    return _reply({"error": {"message": why, "type": "invalid_request_error", "code": status}}, status)


def _reply(content: dict[str, Any], status: int = 200) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(content, status)


def _read(request: Any) -> Request:
    """What is asked for.

    Raises:
        ValueError: it can't be read, or asks for what is not done here.
    """
    if request.get("n", 1) != 1:
        raise ValueError(f"has n={request['n']}; ask for one response")
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise ValueError("has no list of messages")
    media: dict[Kind, list[Media]] = {"image": [], "video": [], "audio": []}
    read = converse(messages, media, Path.cwd())
    prompt = Prompt(
        text=read.text(),
        messages=tuple(read.messages),
        images=tuple(media["image"]),
        videos=tuple(media["video"]),
        audios=tuple(media["audio"]),
        tools=read_tools(request.get("tools")),
    )
    return Request(prompt, bool(request.get("stream")), Future())


class _Program:
    """One dialogue: a process, and what it asked for."""

    def __init__(self, agent: Agent, address: Address) -> None:
        self.agent, self.address = agent, address
        self.asked: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.request: Request | None = None  # what a response is for
        self.chat: tuple[Message, ...] = ()  # that the last response answered

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        address, key = self.address, secrets.token_urlsafe(24)
        address.asked[key] = self.asked
        self.out, self.errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115, closed with this
        direct = f"{os.environ.get('no_proxy') or os.environ.get('NO_PROXY', '')},127.0.0.1"  # whatever proxy there is
        with tempfile.TemporaryFile() as given:
            record = prompt.info | {"messages": _as_openai(prompt), "answer": prompt.answer, "seed": seed}
            given.write(json.dumps(record).encode())
            given.seek(0)
            self.process = subprocess.Popen(
                self.agent.command,
                stdin=given,
                stdout=self.out,
                stderr=self.errors,
                env=os.environ | {"OPENAI_BASE_URL": address.url, "OPENAI_API_KEY": key, "no_proxy": direct},
                start_new_session=True,
            )
        weakref.finalize(self, _end, self.process, address.asked, key)
        return self._next()

    def step(self, response: str) -> Observation:
        assert self.request is not None
        self.chat = self.request.prompt.messages
        self.request.answer.set_result(self._message(response, self.request.prompt.told({})))
        return self._next()

    def _message(self, response: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
        """A response as the message of a completion."""
        message: dict[str, Any] = {"role": "assistant", "content": response}
        if not tools or self.agent.calls is None:
            return message
        schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
        readable = (call for call in calls_in(response, self.agent.calls, schemas) if not call.problem)
        calls = [
            {"index": n, "id": f"call_{n}", "type": "function",
             "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
            for n, call in enumerate(readable)
        ]  # fmt: skip
        return message | {"content": None, "tool_calls": calls} if calls else message

    def _next(self) -> Observation:
        """What the program asks for next, or its end."""
        begun, limit = time.monotonic(), self.agent.deadline
        while True:
            ended = self.process.poll() is not None
            try:
                self.request = self.asked.get(timeout=0 if ended else POLL)
            except queue.Empty:
                if ended:
                    return self._ended()
                if limit is not None and time.monotonic() - begun > limit:
                    raise TimeoutError(f"the program took longer than {limit:g} s (environment.deadline)") from None
            else:
                return self._said(self.request)

    def _said(self, request: Request) -> Observation:
        """What a request says anew, and the whole of it."""
        before, messages = self.chat, request.prompt.messages
        known = len(before) + 1 if before and messages[: len(before)] == before else 0  # the response follows
        words = "\n".join(
            "".join(part.text if part.kind == "text" else f"[{part.kind}]" for part in message.parts)
            for message in messages[known:]
        )
        return Observation(words, role=messages[-1].role, prompt=request.prompt)

    def _ended(self) -> Observation:
        """The reward of a program that has ended."""
        if code := self.process.returncode:
            raise RuntimeError(f"the program ended with exit code {code}: {_last_line(self.errors)}")
        if not self.chat:
            raise RuntimeError("the program ended without a request to OPENAI_BASE_URL")
        try:
            return Observation(reward=float(_last_line(self.out)), done=True)
        except ValueError:
            return Observation(done=True)


def _end(process: subprocess.Popen[bytes], asked: dict[str, Any], key: str) -> None:
    """Nobody waits for this program any more."""
    del asked[key]
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _as_openai(prompt: Prompt) -> list[dict[str, Any]]:
    """The messages of a prompt, with its images as data URLs."""
    media = {"image": iter(prompt.images), "video": iter(prompt.videos), "audio": iter(prompt.audios)}

    def sent(part: dict[str, Any]) -> dict[str, Any]:
        if part["type"] == "text":
            return part
        key, content = f"{part['type']}_url", next(media[part["type"]]).read()
        return {"type": key, key: {"url": f"data:;base64,{base64.b64encode(content).decode()}"}}

    return [message | {"content": list(map(sent, message["content"]))} for message in prompt.chat()]
