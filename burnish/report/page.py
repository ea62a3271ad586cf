"""The page about a run: the board shows it live; report.html is the same page with the run's data in one file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from burnish import __version__
from burnish.config.run_folder import STEP, RunFolder
from burnish.report.card import markdown
from burnish.report.curves import charts, time_data
from burnish.report.media import embedded
from burnish.report.overview import overview
from burnish.report.prompts import groups, prompt_table, trained_prompts, walk
from burnish.report.runs import run_row
from burnish.report.samples import chosen, read_samples
from burnish.report.summary import Summary
from burnish.utils.disk import write_atomically

WEB = Path(__file__).parent / "web"
SCRIPTS = (
    "base", "chart", "media", "overview", "curves", "gallery", "prompts", "groups", "time", "compare", "runs", "sweep",
    "main",
)  # fmt: skip
POINTS = 200  # of a curve
BETWEEN = 6  # validations between the first and the last one whose samples are in the file
MOST_PROMPTS = 1000
LARGEST = 4_000_000  # characters beside the media
NOTHING: dict[str, Any] = {"updates": [], "prompts": [], "kept": []}


@cache
def web(*names: str) -> str:
    """Files of the page, joined; without a name its scripts, in the order in which they need each other."""
    return "\n".join(
        (WEB / name).read_text(encoding="utf-8") for name in names or [f"{script}.js" for script in SCRIPTS]
    )


def write_report(folder: RunFolder) -> Path:
    """Write report.html and report.md from the files of a run, finished or not."""
    run = Summary.read(folder)
    about = overview(folder, run)
    style, script, name = web("board.css"), web(), escape(folder.path.resolve().name)
    policy = "default-src 'none'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'; " + (
        f"style-src {_digest(style)}; script-src {_digest(script)}"
    )
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name} – Burnish</title><style>{style}</style></head>\n"
        f'<body><main id="board"></main><noscript>{name}: report.md beside this file says it in words.</noscript>\n'
        f'<script type="application/json" id="frozen">{_json(_frozen(folder, run, about))}</script>\n'
        f"<script>{script}</script>\n<footer>Written by Burnish {__version__} from the files in this folder; "
        "<code>burnish report</code> writes it anew, and <code>burnish board</code> follows the run.</footer>\n"
        "</body></html>\n"
    )
    write_atomically(folder.report, page.encode())
    write_atomically(folder.report_text, markdown(about).encode())
    return folder.report


def _frozen(folder: RunFolder, run: Summary, about: dict[str, Any]) -> dict[str, Any]:
    """What the board would answer, and media; what is too much for a page is in the folder."""
    row = run_row(".", folder.path, None)
    row |= {"changed": 0, "state": "finished" if run.updates >= run.planned else "stopped"}
    data: dict[str, Any] = {
        "run": {"row": row, "stamp": ""} | about, "curves": charts(folder, run, most=POINTS),
        "time": time_data(folder, run), "walks": _walks(folder, run), "groups": _groups(folder),
    }  # fmt: skip
    for name, table in (("prompts", prompt_table(folder)), ("trained", trained_prompts(folder))):
        data[name] = table | {"prompts": table["prompts"][:MOST_PROMPTS]}
    for name, less in (("trained", NOTHING), ("groups", {}), ("walks", {}), ("prompts", NOTHING)):
        if len(_json(data)) > LARGEST:
            data[name] = less
    return data | {"media": embedded(folder.path, _files(data))}


def _files(data: Any) -> Iterator[str]:
    """Media that are named anywhere in the data, in order."""
    for value in data if isinstance(data, list) else data.values() if isinstance(data, dict) else ():
        yield from _files(value)
    if isinstance(data, dict):
        yield from (name for name in (data.get("file"), *(data.get("shown") or ())) if isinstance(name, str))


def _walks(folder: RunFolder, run: Summary) -> dict[str, Any]:
    """Samples by prompt: of the first and the last validation, and of some between."""
    ends = [row[STEP] for row in (run.before, run.after) if row is not None]
    last = read_samples(folder.validation(ends[-1])) if ends else {}
    between = [update for update in folder.validations() if 0 < update < ends[-1]] if ends else []
    updates = sorted({*ends, *chosen(between, BETWEEN)})
    return {str(index): walk(folder, index, updates) for index in sorted({prompt for prompt, _ in last})}


def _groups(folder: RunFolder) -> dict[str, Any]:
    """The last update's, without media."""
    last = groups(folder)
    for group in last["groups"]:
        for sample in group["samples"]:
            sample.pop("file", None)
    name = str(last["update"])
    return {"last": name, name: last | {"updates": [last["update"]]}} if last["updates"] else {}


def _json(data: Any) -> str:
    """JSON that a page may hold in a script element: no markup can begin in it."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(content: str) -> str:
    """What a Content-Security-Policy allows an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
