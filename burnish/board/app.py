"""The HTTP side of the board: a page, its data as JSON, and media of runs. Everything is only read."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from burnish.board.media import NoSuchFile, media_file, smaller
from burnish.config.run_folder import RunFolder
from burnish.report.charts import charts
from burnish.report.compared import comparison
from burnish.report.evaluated import stamps
from burnish.report.overview import overview, signature
from burnish.report.run_list import configuration, find, run_row
from burnish.report.summary import Summary
from burnish.report.trained import groups, time_data, trained_prompts
from burnish.report.validated import prompt_table, walk
from burnish.report.web import icon, script, shell, style
from burnish.utils.errors import UserError

MOST_COMPARED = 12
LONGEST_QUERY = 4000
PAUSE = 1.0  # seconds for which the runs that were found are taken to be all
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Board:
    """Answers for the runs below a folder."""

    def __init__(self, root: Path, hosts: frozenset[str]) -> None:
        """Args: ``hosts`` are the values of the Host header that are answered."""
        self.root, self.hosts = root, hosts
        self._summaries: dict[str, tuple[str, Summary]] = {}
        self._lock = threading.Lock()
        self._found: dict[str, Path] = {}
        self._evaluated: list[Path] = []  # folders of evaluations, beside the runs
        self._looked = -PAUSE

    def app(self) -> ASGIApp:
        """The application, for an ASGI server."""
        answers: dict[str, Callable[[Request], Any]] = {
            "runs": self.runs, "run": self.run, "curves": self.curves, "prompts": self.prompts, "walk": self.walk,
            "groups": self.groups, "time": self.timing, "compare": self.compare,
        }  # fmt: skip
        app = Starlette(
            routes=[
                Route("/", _text(shell(), "text/html"), methods=["GET"]),
                Route("/board.js", _text(script(), "text/javascript"), methods=["GET"]),
                Route("/board.css", _text(style(), "text/css"), methods=["GET"]),
                Route("/icon.svg", _text(icon(), "image/svg+xml"), methods=["GET"]),
                Route("/media", self.media, methods=["GET"]),
                *(Route(f"/api/{name}", _json(answer), methods=["GET"]) for name, answer in answers.items()),
            ],
            exception_handlers={HTTPException: _refused, UserError: _wrong},
        )
        return Guard(app, self.hosts)

    def runs(self, request: Request) -> Any:
        rows = [run_row(name, path) for name, path in self._runs().items()]
        rows.sort(key=lambda row: (row["state"] != "running", -row["changed"]))
        return {"folder": str(self.root), "runs": rows}

    def run(self, request: Request) -> Any:
        name, folder = self._asked(request)
        row = run_row(name, folder.path)
        if row["error"]:
            raise HTTPException(422, row["error"])
        stamp = f"{signature(folder)}-{stamps(self._evaluated)}"
        if request.query_params.get("stamp") == stamp:  # the page has the rest
            return {"row": row, "stamp": stamp}
        return {"row": row, "stamp": stamp} | overview(folder, self._summary(name, folder), self._evaluated)

    def curves(self, request: Request) -> Any:
        name, folder = self._asked(request)
        return charts(folder, self._summary(name, folder))

    def prompts(self, request: Request) -> Any:
        _, folder = self._asked(request)
        return trained_prompts(folder) if request.query_params.get("of") == "training" else prompt_table(folder)

    def walk(self, request: Request) -> Any:
        _, folder = self._asked(request)
        index = _number(request, "prompt")
        if index is None:
            raise HTTPException(400, "prompt is missing")
        return walk(folder, index)

    def groups(self, request: Request) -> Any:
        _, folder = self._asked(request)
        return groups(folder, _number(request, "update"))

    def timing(self, request: Request) -> Any:
        name, folder = self._asked(request)
        return time_data(folder, self._summary(name, folder), _number(request, "update"))

    def compare(self, request: Request) -> Any:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        found = {name: path for name, path in self._runs().items() if name in names}
        known = {name: path for name, path in found.items() if not configuration(RunFolder(path)).get("error")}
        if len(names) > MOST_COMPARED:
            raise HTTPException(400, f"{len(names)} runs; at most {MOST_COMPARED} can be compared")
        if not known:
            raise HTTPException(404, "no such run")
        return comparison({name: known[name] for name in names if name in known}, self._evaluated)

    def media(self, request: Request) -> Response:
        """A picture, a clip or a sound of a run; ``side`` asks for a small copy of a picture."""
        _, folder = self._asked(request)
        try:
            file, kind = media_file(folder.path, request.query_params.get("file", ""))
            side = _number(request, "side")
            if side is not None and kind.startswith("image/"):
                content, kind = smaller(file, kind, side)
                return Response(content, media_type=kind)
        except NoSuchFile:
            raise HTTPException(404, "no such file") from None
        return FileResponse(file, media_type=kind)

    def _asked(self, request: Request) -> tuple[str, RunFolder]:
        """The run that a request names: one of those below the folder, never a path."""
        name = request.query_params.get("run", "")
        found = self._runs()
        if name not in found:
            raise HTTPException(404, "no such run")
        return name, RunFolder(found[name])

    def _runs(self) -> dict[str, Path]:
        """The runs, looked for again after a moment: a page asks for many things at once."""
        with self._lock:
            if time.monotonic() > self._looked + PAUSE:
                self._found, self._evaluated = find(self.root)
                self._looked = time.monotonic()
            return self._found

    def _summary(self, name: str, folder: RunFolder) -> Summary:
        changed = signature(folder)
        with self._lock:
            known = self._summaries.get(name)
            if known is None or known[0] != changed:
                while len(self._summaries) >= MOST_COMPARED:
                    self._summaries.pop(next(iter(self._summaries)))
                known = self._summaries[name] = changed, Summary.read(folder)
            return known[1]


class Guard:
    """Answers only GET, only under its own name, so that no page of the web can read it by a name that leads here."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        refused = self._refusal(request)
        if refused is not None:
            await refused(scope, receive, send)
            return

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(key.lower().encode(), value.encode()) for key, value in HEADERS.items()]
            await send(message)

        await self.app(scope, receive, sending)

    def _refusal(self, request: Request) -> Response | None:
        named = request.headers.getlist("host")
        if len(named) != 1 or named[0] not in self.hosts:
            return JSONResponse({"error": "this board is only reached under its own address"}, 403, HEADERS)
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return JSONResponse({"error": "asked by another site"}, 403, HEADERS)
        if request.method != "GET":
            return JSONResponse({"error": "only GET is answered"}, 405, HEADERS | {"Allow": "GET"})
        if len(request.url.query) > LONGEST_QUERY:
            return JSONResponse({"error": "the query is too long"}, 414, HEADERS)
        return None


def _json(answer: Callable[[Request], Any]) -> Callable[[Request], Response]:
    def reply(request: Request) -> Response:
        text = json.dumps(answer(request), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        return Response(text, media_type="application/json")

    return reply


def _text(content: str, kind: str) -> Callable[[Request], Response]:
    def reply(request: Request) -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8")

    return reply


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 12:
        raise HTTPException(400, f"{name} is no number")
    return int(text)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these"
    return JSONResponse({"error": error.detail}, status_code=error.status_code)


async def _wrong(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=422)
