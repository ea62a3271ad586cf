"""The data of the board's page about a run, for a page that is one file."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from burnish.config.run_folder import STEP, RunFolder
from burnish.report.charts import charts
from burnish.report.gallery import BETWEEN, GLIMPSE, MOST, OPEN, spaced
from burnish.report.overview import overview
from burnish.report.run_list import run_row
from burnish.report.samples import Samples
from burnish.report.summary import Summary
from burnish.report.trained import groups, time_data, trained_prompts
from burnish.report.validated import asked_data, chosen, prompt_table, sample_data, samples_of

POINTS = 200  # of a curve
TEXTS = 12  # validations whose responses are shown
MOST_PROMPTS = 1000
LARGEST = 4_000_000  # characters
LONGEST = 4000  # characters of a response


def frozen(folder: RunFolder, run: Summary) -> str:
    """JSON that a page may hold in a script element: no markup can begin in it."""
    data = {
        "run": {"row": run_row(".", folder.path), "stamp": ""} | overview(folder, run),
        "curves": charts(folder, run, most=POINTS), "prompts": _few(prompt_table(folder)),
        "trained": _few(trained_prompts(folder)), "walks": _walks(folder, run), "groups": _groups(folder),
        "time": time_data(folder, run),
    }  # fmt: skip
    data["run"]["row"] |= {"changed": 0, "state": "finished" if run.updates >= run.planned else "stopped"}
    less: dict[str, Any] = {
        "trained": {"updates": [], "prompts": [], "kept": []}, "groups": {}, "walks": {},
        "prompts": {"updates": [], "prompts": [], "kept": []},
    }  # fmt: skip
    text = _text(data)
    for name, nothing in less.items():  # what is too much for a page is in the folder
        if len(text) > LARGEST:
            data[name] = nothing
            text = _text(data)
    return text


def digest(content: str) -> str:
    """What a Content-Security-Policy allows an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _text(data: Any) -> str:
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _few(table: dict[str, Any]) -> dict[str, Any]:
    return table | {"prompts": table["prompts"][:MOST_PROMPTS]}


def _walks(folder: RunFolder, run: Summary) -> dict[str, Any]:
    """The samples whose media the page has, by prompt; and, of more validations, responses, which have none."""
    ends = [row[STEP] for row in (run.before, run.after) if row is not None]
    if not ends or not (last := samples_of(folder, ends[-1])):
        return {}
    written = next(iter(last.values())).response is not None
    way = chosen(folder.validations(), TEXTS) if written else spaced(folder, ends[-1], BETWEEN)
    found = {}
    for row, index in enumerate(sorted({place[0] for place in last})):
        walked = []
        for update in sorted({*ends, *(way if written or row < OPEN else ())}):
            own = sorted((place, one) for place, one in samples_of(folder, update).items() if place[0] == index)
            most = MOST if update in ends else GLIMPSE
            shown = [_shorter(sample_data(folder, *one)) for one in own[:most]]
            if shown:
                walked.append({"update": update, "samples": shown})
        found[str(index)] = {"index": index, "updates": walked} | asked_data(folder, last[index, _first(last, index)])
    return found


def _first(samples: Samples, index: int) -> int:
    return min(sample for prompt, sample in samples if prompt == index)


def _shorter(sample: dict[str, Any]) -> dict[str, Any]:
    if len(sample.get("response") or "") > LONGEST:
        sample["response"] = f"{sample['response'][:LONGEST]}…"
    return sample


def _groups(folder: RunFolder) -> dict[str, Any]:
    """The last update's, without media."""
    found = groups(folder)
    for group in found["groups"]:
        for sample in group["samples"]:
            sample.pop("file", None)
    if not found["updates"]:
        return {}
    last = str(found["update"])
    return {"last": last, last: found | {"updates": [found["update"]]}}
