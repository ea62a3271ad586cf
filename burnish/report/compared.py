"""Several runs beside each other: in which options they differ, which differ in their seed only, and their curves."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.config.run_folder import RunFolder
from burnish.report.charts import charts
from burnish.report.run_list import configuration, run_row
from burnish.report.suites import ABOUT, suites_beside
from burnish.report.summary import Summary
from burnish.report.validated import chosen, cut, prompt_texts

SAME = {"seed", "output_dir", "resume"}  # options that runs of one configuration may differ in
POINTS = 200  # of a curve
WEIGHT = re.compile(r"rewards\.[^.]+\.weight=(?!-?0(\.0*)?$).*")
UNSET = {"null", "{}", "[]"}
LONGEST = 300  # characters of an option's value


def comparison(runs: Mapping[str, Path], evaluated: Sequence[Path] = ()) -> dict[str, Any]:
    """Everything that a page shows of several runs.

    Args:
        runs: folders by name.
        evaluated: folders that may be evaluations of them.
    """
    folders = {name: RunFolder(path) for name, path in runs.items()}
    options = {name: flat(configuration(folder)) for name, folder in folders.items()}
    found = []
    for name, folder in folders.items():
        curves = charts(folder, Summary.read(folder), most=POINTS)
        found.append(run_row(name, runs[name]) | {"curves": [_only(chart) for chart in curves["charts"]]})
    return {
        "runs": found, "differences": differences(options), "rewards": other_rewards(options),
        "seeds": same_but_seed(options), "prompts": _prompts(folders), "suites_about": ABOUT,
        "suites": suites_beside({name: (folder, evaluated) for name, folder in folders.items()}),
    }  # fmt: skip


def _only(chart: Mapping[str, Any]) -> dict[str, Any]:
    """A chart's own line: of measures the validation."""
    line = next((one for one in chart["series"] if one["style"] == "validation" and one["x"]), chart["series"][-1])
    return {key: chart.get(key) for key in ("title", "part", "percent", "zero", "span", "note")} | {"line": line}


def flat(config: Any, path: str = "") -> dict[str, str]:
    """A configuration as text by dotted option."""
    if isinstance(config, dict) and config:
        found: dict[str, str] = {}
        for key, value in config.items():
            found |= flat(value, f"{path}.{key}" if path else str(key))
        return found
    return {path: json.dumps(config, ensure_ascii=False, default=str)} if path else {}


def differences(options: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """Options that are not the same in all runs, with their values in order; None where a run lacks one.

    Of what only some have, such as a reward, options that are unset are left out.
    """
    names = dict.fromkeys(name for one in options.values() for name in one)
    found = []
    for name in names:
        values = [one.get(name) for one in options.values()]
        known = set(values) - {None}
        if len(set(values)) > 1 and not (None in values and known <= UNSET):
            found.append({"option": name, "values": [cut(value, LONGEST) for value in values]})
    return found


def other_rewards(options: Mapping[str, Mapping[str, str]]) -> str:
    """A warning where runs were trained on different rewards; "" where these are the same."""
    found = {
        name: " + ".join(sorted(key.split(".")[1] for key, value in one.items() if WEIGHT.fullmatch(f"{key}={value}")))
        for name, one in options.items()
    }
    if len(set(found.values())) < 2:
        return ""
    told = "; ".join(f"{cut(name, LONGEST)}: {cut(rewards, LONGEST) or 'none'}" for name, rewards in found.items())
    return f"These runs were trained on different rewards, which can't be compared: {told}."


def same_but_seed(options: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    """Names of runs, those that differ only in their seed together."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, one in options.items():
        key = tuple(sorted((option, value) for option, value in one.items() if option not in SAME))
        alike.setdefault(key, []).append(name)
    return list(alike.values())


def _prompts(folders: Mapping[str, RunFolder]) -> list[dict[str, Any]]:
    """Validation prompts that all runs share, by their place in each."""
    every = [prompt_texts(folder, chosen(folder.validations())) for folder in folders.values()]
    if not every:
        return []
    found = []
    for index, one in sorted(every[0].items()):
        if all(other.get(index, {}).get("prompt") == one["prompt"] for other in every):
            found.append({"index": index, "prompt": cut(one["prompt"], 400)})
    return found[:1000]
