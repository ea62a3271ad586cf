"""burnish eval --suite, --merge, --compare: suites on anyone's checkpoint, and what came of them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from burnish.commands.opening import open_model, open_run, output_folder
from burnish.config.overrides import read_overrides
from burnish.evaluation.records import Folder, Header, Record, merged
from burnish.evaluation.results import check_comparable, compared, result_of
from burnish.evaluation.suite import read_suite, suite_names
from burnish.utils import terminal
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.reading import checked_path

if TYPE_CHECKING:
    from burnish.tasks.suites import Shard

SECTION = "suite."  # before options of a suite on the command line
SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


def evaluate_suite(source: str, overrides: Sequence[str], suite: str, *, output: str | None, shard: str | None) -> int:
    """Evaluate a run, a recipe or any model on a suite, or go on with an evaluation that was stopped.

    Args:
        source: folder of a run or of a checkpoint, recipe, or MODEL or MODEL+LORA: folders, or names on the hub.
        overrides: dotted options of the run, and of the suite behind ``suite.``.
        suite: its name, or a file in YAML.
        output: folder of the records; None prints only.
        shard: i/n, which part is evaluated here.
    """
    part = _shard(shard)
    if part and output is None:
        raise UserError("--shard is given without --output, where its records go; give one")
    own = {name.removeprefix(SECTION): value for name, value in read_overrides(overrides).items() if _is_own(name)}
    wanted = read_suite(suite, own)
    model_options = [one for one in overrides if not _is_own(one)]
    _refuse_pinned(model_options, wanted.settings)
    with terminal.loading_pytorch():
        import torch

    opened = open_model(source, wanted.task, model_options)
    assembly, update = opened if opened is not None else open_run(source, model_options)
    target = output_folder(output, "eval") if output else None
    with (
        closing(assembly),
        closing(runner := assembly.suite_runner(assembly, wanted)),
        tempfile.TemporaryDirectory() as away,
    ):
        runner.check()
        with assembly.trained_weights(), torch.no_grad(), terminal.progress(f"Suite {wanted.name}") as progress:
            result = runner.run(
                target or Path(away), source=source, update=None if opened is not None else update, shard=part,
                progress=progress,
            )  # fmt: skip
    console = terminal.console()
    _show(console, result, f"{wanted.title} of {source}" + (f", shard {shard}" if shard else ""))
    if target:
        console.print(f"Records and result are in [bold]{escape(str(target))}[/bold]")
    return 0


def merge(folders: Sequence[str], *, output: str | None) -> int:
    """Put the shards of an evaluation together."""
    if output is None:
        raise UserError("--merge is given without --output, where the complete evaluation goes; give one")
    parts = [Folder(checked_path(folder, "--merge")) for folder in folders]
    target = Folder(output_folder(output, "eval"))
    header, records = merged(target, parts)
    result = result_of(header, records)
    target.finish(result)
    console = terminal.console()
    _show(console, result, f"{header.suite} of {header.source}, {len(parts)} shards")
    console.print(f"Records and result are in [bold]{escape(output)}[/bold]")
    return 0


def compare(before: str, after: str) -> int:
    """Show what changed between two evaluations of a suite, paired by prompt."""
    headers: list[Header] = []
    records: list[list[Record]] = []
    results: list[dict[str, Any]] = []
    for folder in (before, after):
        opened = Folder(checked_path(folder, "--compare"))
        records.append(opened.complete())
        header = opened.header()
        assert header is not None, "a complete evaluation has a header"
        headers.append(header)
        results.append(result_of(header, records[-1]))
    differing = check_comparable(*headers)
    console = terminal.console()
    table = Table("", "before", "after", "change", title=escape(f"{headers[0].suite}: {before} and {after}"))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, change in compared(headers[0], records[0], records[1]).items():
        sides = [one["overall"] if name == "overall" else one["tasks"][name] for one in results]
        table.add_row(escape(name), *(_told(side) for side in sides), _told(vars(change), signed=True))
    console.print(table)
    for problem in differing:
        console.print(f"[yellow]Not the model alone: {escape(problem)}[/yellow]")
    for side, result in zip(("before", "after"), results, strict=True):
        _doubt(console, result, f"The numbers {side} are")
    console.print("Changes are means over the same prompts with the same noise; brackets hold 95 % of the bootstrap.")
    return 0


def list_suites() -> int:
    """Show the suites that ship with Burnish."""
    table = Table("suite", "what it measures", "licence of its prompts")
    for name in suite_names():
        suite = read_suite(name)
        table.add_row(name, escape(suite.about), escape(suite.licence))
    terminal.console().print(table)
    return 0


def _is_own(option: str) -> bool:
    return option.startswith(SECTION)


def _refuse_pinned(overrides: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Refuse an option in whose place the suite has one."""
    for option in read_overrides(overrides):
        section, _, name = option.partition(".")
        if section in ("rollout", "validation") and settings.get(name) is not None:
            sub = "drawing" if "num_inference_steps" in settings else "responding"
            raise ConfigError(
                f"{option} is given, but the suite pins {name} to {settings[name]}; to change it, which makes results "
                f"incomparable, give {SECTION}{sub}.{name}"
            )


def _shard(text: str | None) -> Shard | None:
    if text is None:
        return None
    found = SHARD.fullmatch(text)
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise UserError(f"--shard is {text!r}; write i/n with i from 1 to n, as in 1/4")
    return number, count


def _show(console: Console, result: Mapping[str, Any], title: str) -> None:
    table = Table("", "value", "95 % interval", "prompts", title=escape(title))
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {f"{result['number']} (overall)": result["overall"]}
    rows |= result["tasks"] if len(result["tasks"]) > 1 else {}
    rows |= {name: one for name, one in result["columns"].items() if name not in (result["number"], "reward")}
    for name, one in rows.items():
        value, _, interval = _told(one).partition(" ")
        table.add_row(escape(name), value, interval, str(one["prompts"]))
    console.print(table)
    if result["changed"]:
        console.print(f"[yellow]Options of the suite were changed: {escape(', '.join(result['changed']))}[/yellow]")
    if result["unwatched"]:
        console.print(f"No canary looks at {escape(', '.join(result['unwatched']))}.")
    _doubt(console, result, "This result is")


def _doubt(console: Console, result: Mapping[str, Any], subject: str) -> None:
    if not result["believed"]:
        console.print(f"[bold red]{subject} not to be believed:[/bold red]")
        for reason in result["why_not"]:
            console.print(f"  {escape(reason)}")


def _told(one: Mapping[str, Any], *, signed: bool = False) -> str:
    if one["value"] is None:
        return "–"
    sign = "+" if signed else ""
    interval = "" if one["low"] is None else f" [{one['low']:{sign}.4f}, {one['high']:{sign}.4f}]"
    return f"{one['value']:{sign}.4f}{interval}"
