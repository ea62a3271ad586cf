"""burnish board: a local page about the runs in a folder, which follows those that run. Everything is only read."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from PIL import Image
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from burnish.config.run_folder import STEP, RunFolder
from burnish.report.curves import charts, time_data
from burnish.report.media import UNREADABLE, encoded
from burnish.report.overview import overview, signature
from burnish.report.page import web
from burnish.report.prompts import groups, prompt_table, trained_prompts, walk
from burnish.report.runs import (
    by_option,
    configuration,
    differences,
    find_runs,
    locked_files,
    options_of,
    other_rewards,
    run_row,
    run_rows,
    shared_prompts,
)
from burnish.report.summary import Summary
from burnish.utils.errors import UserError
from burnish.utils.http import bound, serve, server
from burnish.utils.reading import checked_path
from burnish.utils.records import cached, leads_out, stamp

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"  # never another one: it has no accounts
MOST_COMPARED = 12
PAUSE = 1.0  # seconds for which the runs that were found are taken to be all
POINTS = 200  # of a curve beside others
KINDS = {
    ".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp", ".mp4": "video/mp4", ".wav": "audio/wav",
}  # fmt: skip
NAME = r"[^/\\\0]{1,200}"
PLACES = re.compile(rf"(validation/\d{{6,9}}/pictures|reference/pictures|alarms|samples/{NAME})/{NAME}")
SIDES = (96, 192, 384, 768)  # longest sides of small copies
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


def board(folder: str = "runs", *, port: Annotated[int, 0, 65535] = 8010) -> int:
    """Show the runs in a folder on a local page.

    Examples:
        burnish board
        burnish board runs --port 0

    Args:
        folder: where runs are, or one of them
        port: of this machine; 0 takes a free one
    """
    root = checked_path(folder, "FOLDER")
    if not root.is_dir():
        raise UserError(f"FOLDER is {folder}, which is not a folder; give the one in which runs are, such as runs")
    with closing(bound(HOST, port)) as listening:
        port = listening.getsockname()[1]
        print(f"The board of {root} is at http://{HOST}:{port}/; Ctrl-C ends it", flush=True)
        serve(board_server(root, port), listening)
    return 0


def board_server(root: Path, port: int) -> uvicorn.Server:
    """The server of a board that is reached at a port of this machine."""
    hosts = frozenset(f"{name}:{port}" if port != 80 else name for name in (HOST, "localhost"))
    return server(Board(root.resolve(), hosts).app(), connections=64, idle=30, farewell=2)


class Board:
    """Answers for the runs below a folder."""

    def __init__(self, root: Path, hosts: frozenset[str]) -> None:
        """Args: ``hosts`` are the values of the Host header that are answered."""
        self.root, self.hosts = root, hosts

    def app(self) -> ASGIApp:
        """The application, for an ASGI server."""
        of_run: dict[str, Callable[[RunFolder, Request], Any]] = {
            "curves": lambda folder, request: charts(folder, _asked_rows(_summary(folder.path), request)),
            "prompts": lambda folder, request: (
                trained_prompts(folder) if request.query_params.get("of") == "training" else prompt_table(folder)
            ),
            "walk": lambda folder, request: walk(folder, _number(request, "prompt") or 0),
            "groups": lambda folder, request: groups(folder, _number(request, "update")),
            "time": lambda folder, request: time_data(folder, _summary(folder.path), _number(request, "update")),
        }
        answers: dict[str, Callable[[Request], Any]] = {
            "runs": self.runs, "options": self.options, "run": self.run, "compare": self.compare,
            **{name: partial(self.answer, answer) for name, answer in of_run.items()},
        }  # fmt: skip
        files = (
            ("/", web("board.html"), "text/html"), ("/board.js", web(), "text/javascript"),
            ("/board.css", web("board.css"), "text/css"), ("/icon.svg", web("icon.svg"), "image/svg+xml"),
        )  # fmt: skip

        async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
            response = _refusal(request, self.hosts) or await call_next(request)
            response.headers.update(HEADERS)
            return response

        return Starlette(
            routes=[
                *(Route(path, partial(_text, content, kind)) for path, content, kind in files),
                Route("/media", self.media),
                *(Route(f"/api/{name}", partial(_json, answer)) for name, answer in answers.items()),
            ],
            exception_handlers={HTTPException: _wrong, UserError: _wrong},
            middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)],
        )

    def runs(self, request: Request) -> Any:
        return {"folder": str(self.root), "runs": run_rows(self._runs)}

    def options(self, request: Request) -> Any:
        """The options of all runs, for filters, groups and sweeps."""
        runs = {name: options_of(RunFolder(path)) for name, path in self._runs.items()}
        return {"runs": list(runs), "values": dict(by_option(runs.values()))}

    def run(self, request: Request) -> Any:
        name, folder = self._asked(request)
        row = run_row(name, folder.path, locked_files())
        if row["error"]:
            raise HTTPException(422, row["error"])
        about = {"row": row, "stamp": signature(folder)}
        if request.query_params.get("stamp") == about["stamp"]:  # the page has the rest
            return about
        return about | overview(folder, _summary(folder.path))

    def answer(self, answer: Callable[[RunFolder, Request], Any], request: Request) -> Any:
        """What is asked about one run."""
        return answer(self._asked(request)[1], request)

    def compare(self, request: Request) -> Any:
        """Everything that a page shows of several runs."""
        names, runs = dict.fromkeys(request.query_params.getlist("run")), self._runs
        if len(names) > MOST_COMPARED:
            raise HTTPException(400, f"{len(names)} runs; at most {MOST_COMPARED} can be compared")
        every = {name: RunFolder(runs[name]) for name in names if name in runs}
        folders = {name: folder for name, folder in every.items() if not configuration(folder.config).get("error")}
        if not folders:
            raise HTTPException(404, "no such run")
        options = {name: options_of(folder) for name, folder in folders.items()}
        curves = {name: charts(folder, _summary(folder.path), most=POINTS) for name, folder in folders.items()}
        locked = locked_files()
        return {
            "runs": [
                run_row(name, folder.path, locked)
                | {"curves": [_one_line(chart) for chart in curves[name]["charts"]], "axes": curves[name]["axes"]}
                for name, folder in folders.items()
            ],
            "differences": differences(options), "rewards": other_rewards(options),
            "prompts": shared_prompts(list(folders.values())),
        }  # fmt: skip

    def media(self, request: Request) -> Response:
        """An image, a clip or a sound of a run; ``side`` asks for a small copy of an image."""
        _, folder = self._asked(request)
        file = media_file(folder.path, request.query_params.get("file", ""))
        if file is None:
            raise HTTPException(404, "no such file")
        side, small = _number(request, "side"), None
        if side is not None and file.suffix in (".png", ".jpg"):  # others may move
            with suppress(*UNREADABLE):
                small = _smaller(file, stamp(file), next((size for size in SIDES if size >= side), SIDES[-1]))
        if small is None:
            return FileResponse(file, media_type=KINDS[file.suffix])
        return Response(small, media_type="image/jpeg")

    def _asked(self, request: Request) -> tuple[str, RunFolder]:
        """The run that a request names: one of those below the folder, never a path."""
        name = request.query_params.get("run", "")
        if (path := self._runs.get(name)) is None:
            raise HTTPException(404, "no such run")
        return name, RunFolder(path)

    @property
    def _runs(self) -> dict[str, Path]:
        return _found(self.root, int(time.monotonic() / PAUSE))


@lru_cache(maxsize=1)
def _found(root: Path, moment: int) -> dict[str, Path]:
    """Runs, looked for again after a moment: a page asks for many things at once."""
    return find_runs(root)


@cached(lambda folder: signature(RunFolder(folder)), MOST_COMPARED)
def _summary(folder: Path) -> Summary:
    return Summary.read(RunFolder(folder))


def media_file(run: Path, name: str) -> Path | None:
    """A file of a run by its path in the folder; None if it is no media that a run writes, or links lead elsewhere."""
    file = run / name
    plain = PLACES.fullmatch(name) and file.suffix in KINDS and not {".", ".."} & set(name.split("/"))
    return file if plain and not leads_out(file, run) and file.is_file() else None


@lru_cache(maxsize=2000)
def _smaller(file: Path, changed: tuple[int, ...], side: int) -> bytes | None:
    """A copy of an image with a side of at most so many pixels; None for one that is as small."""
    with Image.open(io.BytesIO(file.read_bytes()), formats=["PNG", "JPEG"]) as image:
        if max(image.size) <= side:
            return None
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        return encoded(image.convert("RGB"), quality=85)


def _asked_rows(run: Summary, request: Request) -> Summary:
    """The run's metrics between two updates, where a request names them."""
    first, last = _number(request, "from") or 0, _number(request, "to")
    rows = [row for row in run.rows if first <= row[STEP] and (last is None or row[STEP] <= last)]
    return replace(run, rows=rows)


def _one_line(chart: Mapping[str, Any]) -> dict[str, Any]:
    """A chart's own line: of measures the validation."""
    line = next((line for line in chart["series"] if line["style"] == "validation" and line["x"]), chart["series"][-1])
    return {key: chart.get(key) for key in ("title", "part", "percent", "zero", "span", "note")} | {"line": line}


def _refusal(request: Request, hosts: frozenset[str]) -> Response | None:
    """The answer to whatever is no GET under the board's own name, so that no page of the web can read it."""
    named = request.headers.getlist("host")
    if len(named) != 1 or named[0] not in hosts:
        return JSONResponse({"error": "this board is only reached under its own address"}, 403)
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return JSONResponse({"error": "asked by another site"}, 403)
    if request.method != "GET":
        return JSONResponse({"error": "only GET is answered"}, 405, {"Allow": "GET"})
    return None


def _json(answer: Callable[[Request], Any], request: Request) -> Response:
    return JSONResponse(answer(request))


def _text(content: str, kind: str, request: Request) -> Response:
    return Response(content, media_type=f"{kind}; charset=utf-8")


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is not None and not (text.isdecimal() and len(text) <= 12):
        raise HTTPException(400, f"{name} is {text!r:.40}, which is not a number")
    return None if text is None else int(text)


async def _wrong(request: Request, error: Exception) -> Response:
    code, text = (error.status_code, error.detail) if isinstance(error, HTTPException) else (422, str(error))
    return JSONResponse({"error": text}, code)
