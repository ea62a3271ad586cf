"""What there is to look at: recipes and their options, runs in a folder, their measures, the report of one."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from rich.text import Text

from burnish.commands.prepare import hardware_complaint, has_driver
from burnish.config import load
from burnish.config.disk import disk_problems
from burnish.config.hardware import listed, made_for, read_machine
from burnish.config.load import BASE, find_recipe, hardware_of, recipe_names
from burnish.config.run_folder import RunFolder
from burnish.config.text import explained, heading
from burnish.config.yaml_text import parse
from burnish.utils import terminal
from burnish.utils.errors import UserError
from burnish.utils.paths import RECIPES
from burnish.utils.reading import checked_path

WIDTH = 80  # of what is explained


def config(recipe: str, overrides: Sequence[str] = (), *, changed: bool = False) -> int:
    """Show every option of a run, explained.

    It also lists what keeps the run from starting on this machine, such as files that are missing.

    Examples:
        burnish config quickstart                             every option, explained; non-default values are marked
        burnish config quickstart algorithm=flow_grpo
        burnish config quickstart rollout data                the options of these sections
        burnish config quickstart --changed                   those that differ from their default
        burnish config quickstart rollout.n=16 > mine.yaml    the output is a recipe: burnish train mine.yaml

    Args:
        recipe: name of a recipe (burnish recipes) or path of a .yaml file
        overrides (SECTION|OPTION=VALUE): sections that are shown, and options of the run as section.option=value
        changed: only options that differ from their default
    """
    sections = [word for word in overrides if "=" not in word]
    options = [word for word in overrides if "=" in word]
    resolved = load(recipe, options)
    lines = explained(resolved)
    if missing := set(sections) - {line.path for line in lines}:
        raise UserError(f"{min(missing)} is not a section of this run; burnish config RECIPE shows all")
    title = [] if sections or changed else [("", words) for words in heading(" ".join([recipe, *options]))]
    if sections or changed:
        asked = [
            line.path for line in lines
            if any(f"{line.path}.".startswith(f"{section}.") for section in sections or [line.path])
            and (not changed or line.words.startswith("[default "))
        ]  # fmt: skip
        lines = [line for line in lines if any(f"{path}.".startswith(f"{line.path}.") for path in asked)]
    pairs = [*title, *(pair for line in lines for pair in line.lines())]
    terminal.say(*(part for text, words in pairs for part in _wrapped(text, words)), end="")
    # what follows is no part of a recipe; missing files are no error, since it is read before its model is fetched
    if (stated := hardware_of(recipe)) and read_machine(options)[0].gpus is None:
        terminal.say((f"\n# {made_for(recipe, stated)}", "dim"))
    lacking = None if has_driver() else hardware_complaint(resolved)  # to count GPUs, PyTorch has to be loaded
    problems = [*([lacking] if lacking else []), *disk_problems(resolved)]
    if problems:
        terminal.say(("\n# Before burnish train can start here:", "bold yellow"))
    for problem in problems:
        terminal.say((f"#   - {' '.join(problem.split())}", "yellow"))
    return 0


def _wrapped(text: str, words: str) -> Iterator[tuple[str, str]]:
    """An option with its explanation in lines of 80 columns, and their styles."""
    bold = "bold green" if words.startswith("# [default ") else ""
    wrapped = textwrap.wrap(words.removeprefix("# "), max(WIDTH - len(text) - 2, 30))
    for number, part in enumerate(wrapped or [""]):
        yield " " * len(text) if number else text, bold
        yield f"# {part}\n" if words else "\n", "dim"


def recipes(word: str = "") -> int:
    """List the recipes that ship with Burnish.

    Examples:
        burnish recipes
        burnish recipes qwen                                  those with this word in their name or description
        burnish config quickstart > mine.yaml && burnish train mine.yaml    start from one of them

    Args:
        word: part of a name or description
    """
    wanted = [one for one in recipe_names() if word.lower() in f"{one} {_description(find_recipe(one))}".lower()]
    if not wanted:
        raise UserError(f"no recipe has {word!r} in its name or description; burnish recipes lists all")
    names = sorted(wanted, key=lambda name: (name.count("/"), name))
    width = max(map(len, names))
    for folder, group in groupby(names, key=lambda name: name.rpartition("/")[0]):
        if folder:
            base = RECIPES / folder / f"{BASE}.yaml"
            terminal.say((f"\n{_description(base) if base.is_file() else folder}", "bold"))
        rows = []
        for name in group:
            path, stated = find_recipe(name), hardware_of(name)
            needs = f" ({listed(stated)})" if stated else ""
            rows.append(
                (name.ljust(width), Text.assemble(_description(path), (needs, "dim"), (_lacking(path), "yellow")))
            )
        terminal.table(("", ""), rows)
    terminal.say("\nburnish config RECIPE explains a recipe, and lists what it needs before it can be trained.")
    return 0


def _description(path: Path) -> str:
    """The first comment of a recipe."""
    text = path.read_text(encoding="utf-8")
    return next((line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")), "")


def _lacking(path: Path) -> str:
    """Reward functions that the user has to write for a recipe."""
    rewards = parse(path.read_text(encoding="utf-8")).get("rewards") or {}
    written = [label for label, reward in rewards.items() if reward.get("name") == "function"]
    return f" (reward to write: {', '.join(written)})" if written else ""


def runs(folder: str = "runs") -> int:
    """List the runs in a folder.

    Examples:
        burnish runs            state, best validation, when and how long, of every run below runs
        burnish runs elsewhere

    Args:
        folder: where runs are
    """
    from burnish.report.runs import find_runs, run_rows

    root = checked_path(folder, "FOLDER")
    if not root.is_dir():
        raise UserError(f"FOLDER is {folder}, which is not a folder; give the one in which runs are, such as runs")
    rows = run_rows(find_runs(root))
    if not rows:
        raise UserError(f"FOLDER is {folder}, in which there is no run; give the one in which runs are")
    table = []
    for row in rows:
        best = row["best"] or {"reward": None, "update": "–"}
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["changed"])) if row["changed"] else "–"
        highest, last = ("–" if value is None else f"{value:.3f}" for value in (best["reward"], row["last"]))
        state, took = "unreadable configuration" if row["error"] else row["state"], terminal.duration(row["seconds"])
        table.append(
            (row["name"], state, f"{row['updates']}/{row['steps']}", highest, best["update"], last, took, changed)
        )
    terminal.table(("run", "state", "updates", "best", "at", "now", "took", "last change"), table)
    return 0


def compare(first: str, others: Sequence[str]) -> int:
    """Compare runs: measures and options.

    Examples:
        burnish compare runs/a runs/b         measures before and after, and the options that differ

    Args:
        first (RUN): folder of a run
        others (RUN): folders of others
    """
    from burnish.report.runs import configuration, differences, options_of, other_rewards
    from burnish.report.summary import Summary

    names = list(dict.fromkeys([first, *others]))
    if len(names) < 2:
        raise UserError("compare needs two different runs; give the folders of some")
    folders = list(map(RunFolder.of_run, names))
    for folder in folders:
        if error := configuration(folder.config).get("error"):
            raise UserError(error)
    summaries = [Summary.read(folder) for folder in folders]
    rows = [
        ["updates", *(f"{run.updates}/{run.planned}" for run in summaries)],
        ["time of updates", *(terminal.duration(run.seconds) for run in summaries)],
    ]
    for measure in {one.key: one for run in summaries for one in run.measures if not one.watched}.values():
        values = [(measure.of(run.before), measure.of(run.after)) for run in summaries]
        rows.append([measure.title, *(f"{measure.show(before)} → {measure.show(after)}" for before, after in values)])
    terminal.table(("", *names), rows)
    configurations = {name: options_of(folder) for name, folder in zip(names, folders, strict=True)}
    if warning := other_rewards(configurations):
        terminal.say((f"\n{warning}", "yellow"))
    changed = differences(configurations)
    terminal.say("\nOptions that differ:" if changed else "\nAll options are the same.")
    if shared := [(one["option"], *one["values"]) for one in changed if None not in one["values"]]:
        terminal.table(("", *names), shared)
    for place, name in enumerate(names):
        alone = [(one["option"], one["values"][place]) for one in changed if None in one["values"]]
        if own := [f"{option}={value}" for option, value in alone if value is not None]:
            terminal.say("\nOnly in ", (f"{name}: ", "bold"), ", ".join(own))
    return 0


def report(run: str) -> int:
    """Write the report of a run.

    Examples:
        burnish report runs/quickstart      curves and images of a run as one HTML page in its folder

    Args:
        run: folder of a run
    """
    from burnish.report.page import write_report

    terminal.say(f"The report is {write_report(RunFolder.of_run(run))}")
    return 0
