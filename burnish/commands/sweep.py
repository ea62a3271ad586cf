"""``burnish train --sweep``: trains every combination of values, one after another, and prints a table."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from burnish.config import load
from burnish.config.disk import check_disk
from burnish.config.hub import fetch_data, with_models
from burnish.utils import terminal
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.json_text import parse_json
from burnish.utils.paths import METRICS

STOPPED = 75
CORE = re.compile(r"val-core/(.+)/reward/(?:mean@\d+|(best|maj)@(\d+)/mean)")
KINDS = {"best": "best of", "maj": "majority of"}


@dataclass(frozen=True)
class Member:
    """One run of a sweep."""

    values: dict[str, str]  # of the varied options
    overrides: list[str]  # all options of its command line
    folder: Path


def sweep(recipe: str, overrides: Sequence[str]) -> int:
    """Run every member in its own process, and compare them.

    Returns:
        0, or the code of the first run that failed, or 75 if it was stopped; the same command then resumes it.
    """
    members = checked(recipe, overrides)
    codes: list[int] = []
    with _forwarding() as run:
        for number, member in enumerate(members, 1):
            print(terminal.printable(f"sweep: run {number} of {len(members)}: {member.folder}"), flush=True)
            codes.append(run([sys.executable, "-m", "burnish.cli", "train", recipe, *member.overrides]))
            if codes[-1] == STOPPED:
                break
    show(members, codes)
    return STOPPED if STOPPED in codes else next((code for code in codes if code), 0)


def checked(recipe: str, overrides: Sequence[str]) -> list[Member]:
    """The members of a sweep, all of them checked.

    Raises:
        ConfigError: with all problems.
    """
    base = next((one.partition("=")[2] for one in overrides if one.startswith("output_dir=")), None)
    members = expand(overrides, base or load(recipe, _first(overrides)).output_dir)
    complaints: list[str] = []
    for member in members:
        try:
            config = with_models(load(recipe, member.overrides))
            fetch_data(config)
            check_disk(config)
        except ConfigError as error:
            complaints += error.complaints
        except UserError as error:
            complaints.append(str(error))
    if complaints:
        raise ConfigError(complaints)
    return members


def expand(overrides: Sequence[str], base: str) -> list[Member]:
    """Every combination of comma-separated values, the first option varying slowest.

    Raises:
        ConfigError: nothing varies, a value is repeated, or two members would share a folder.
    """
    options = [(option, split(text)) for option, _, text in (one.partition("=") for one in overrides)]
    alone = [option for option, values in options if len(values) == 1 and option != "output_dir"]
    fixed = [one for one in overrides if one.partition("=")[0] in alone]
    varied = [(option, values) for option, values in options if len(values) > 1]
    for option, values in varied:
        text = ",".join(values)
        if option in ("output_dir", "resume"):
            raise ConfigError(f"{option} is {text}, but can't be varied by a sweep; give one value")
        if "" in values:
            raise ConfigError(f"{option} is {text}; a value between two commas is empty; write one there")
        repeated = [value for value, count in Counter(values).items() if count > 1]
        if repeated:
            raise ConfigError(f"{option} is {text}; {repeated[0]} is repeated, leave one out")
    if not varied:
        raise ConfigError("--sweep has nothing to vary; separate values with commas, as in seed=0,1,2")
    names = [option for option, _ in varied]
    if len(set(names)) < len(names):
        raise ConfigError(f"--sweep varies {Counter(names).most_common(1)[0][0]} twice; give all its values at once")
    members = []
    for combination in itertools.product(*(values for _, values in varied)):
        chosen = [f"{option}={value}" for option, value in zip(names, combination, strict=True)]
        folder = Path(base) / ",".join(chosen).replace("/", "_")
        command = [*fixed, *chosen, f"output_dir={json.dumps(str(folder))}"]
        members.append(Member(dict(zip(names, combination, strict=True)), command, folder))
    shared = [folder for folder, count in Counter(member.folder for member in members).items() if count > 1]
    if shared:
        raise ConfigError(f"two runs of the sweep would share the folder {shared[0]}; give them other values")
    return members


def split(text: str) -> list[str]:
    """Split at commas that are not inside brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


Rewards = dict[tuple[str, str], float]  # by data source, and by name: reward, best of N, majority of N


def rewards(folder: Path) -> tuple[Rewards, Rewards]:
    """What the first and the last validation in metrics.jsonl came to."""
    path = folder / METRICS
    found: list[Rewards] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = parse_json(line)
        except ValueError:  # truncated when the run was killed
            continue
        if isinstance(record, dict):
            known = [(match, value) for key, value in record.items() if (match := CORE.fullmatch(key))]
            found.append({_named(match): value for match, value in known if value is not None})
    found = [one for one in found if one]
    return (found[0], found[-1]) if found else ({}, {})


def _named(match: re.Match[str]) -> tuple[str, str]:
    source, kind, count = match.groups()
    return source, f"{KINDS[kind]} {count}" if kind else "reward"


def show(members: Sequence[Member], codes: Sequence[int]) -> None:
    """Print the rewards of each member that was started, a row for each data source, and their mean over the seeds."""
    from rich.table import Table
    from rich.text import Text

    results = [(member, *rewards(member.folder)) for member, _ in zip(members, codes, strict=False)]
    known = [key for _, _, last in results for key in last]
    sources, names = list(dict.fromkeys(source for source, _ in known)), list(dict.fromkeys(name for _, name in known))
    table = Table(title="first validation → last" if names else None, title_justify="left", box=None)
    for name in (*members[0].values, *(["data"] if len(sources) > 1 else []), *names, "run"):
        table.add_column(Text(name), overflow="fold")

    def add(values: Sequence[str], source: str, cells: Sequence[str], ended: str, style: str = "") -> None:
        table.add_row(*map(Text, [*values, *([source] if len(sources) > 1 else []), *cells, ended]), style=style)

    seeds: dict[tuple[str, ...], list[Rewards]] = {}
    for code, (member, first, last) in zip(codes, results, strict=False):
        ended = {0: "done", STOPPED: "stopped"}.get(code, f"failed ({code})")
        for source in sources or [""]:
            pairs = [(first.get((source, name)), last.get((source, name))) for name in names]
            cells = ["" if b is None else f"{b:.4g}" if a is None else f"{a:.4g} → {b:.4g}" for a, b in pairs]
            add(list(member.values.values()), source, cells, ended)
        values = tuple("mean ± std" if option == "seed" else value for option, value in member.values.items())
        seeds.setdefault(values, []).append(last)
    for values, some in seeds.items():
        for source in sources if len(some) > 1 else ():
            columns = [[last[source, name] for last in some if (source, name) in last] for name in names]
            add(values, source, list(map(_over_seeds, columns)), f"{len(some)} seeds", "bold")
    terminal.console().print(table)


def _over_seeds(values: Sequence[float]) -> str:
    return f"{mean(values):.4g} ± {stdev(values):.2g}" if len(values) > 1 else ""


def _first(overrides: Sequence[str]) -> list[str]:
    pairs = (one.partition("=") for one in overrides)
    return [f"{option}{equals}{split(text)[0]}" for option, equals, text in pairs]


@contextmanager
def _forwarding() -> Iterator[Callable[[list[str]], int]]:
    """Run processes one at a time; a signal is forwarded to the running one and ends the sweep."""
    child: subprocess.Popen[bytes] | None = None
    stopped = False

    def forward(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        if child is not None and child.poll() is None:
            child.send_signal(number)

    def run(command: list[str]) -> int:
        nonlocal child
        if stopped:
            return STOPPED
        # its own process group: Ctrl-C in a terminal reaches it once, forwarded by us
        child = subprocess.Popen(command, process_group=0, env=os.environ | {"BURNISH_SWEEP": str(os.getpid())})
        if stopped:
            child.send_signal(signal.SIGTERM)
        code = child.wait()
        return STOPPED if stopped else code

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield run
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
