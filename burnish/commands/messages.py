"""What a run prints at its start (its sizes) and at its end (results, files, next steps)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from burnish.config import RunConfig
from burnish.config.run_folder import STEP, RunFolder
from burnish.report.overview import numbers
from burnish.report.summary import Summary, next_steps
from burnish.report.verdict import headline, verdict
from burnish.utils import terminal

MARKS = {"gained": "[blue]+[/blue]", "kept": "[blue]=[/blue]", "lost": "[yellow]−[/yellow]", "weigh": "·"}


def plan(config: RunConfig, items: int, *, done: int = 0) -> list[str]:
    """The sizes of a run, one sentence each, with the options that decide them.

    Args:
        config: of the run.
        items: prompts or records of the training data.
        done: updates of earlier attempts.
    """
    holds = config.algorithm.needs().data
    learned = config.words.samples if config.online else holds
    counted = terminal.counted
    first = f"{counted(config.steps, 'updates')} of {counted(config.samples, learned)} ({config.samples_from})"
    if done:
        first += f"; {done:,} of them are done"
    drawn = config.steps * config.records
    lines = [
        f"{first}.",
        f"{_steps(config)}.",
        f"The run: {counted(config.steps * config.samples, learned)}, "
        f"{counted(config.optimizer_steps, 'optimizer steps')}, {drawn / items:,.3g} epochs over "
        f"{counted(items, holds)}.",
    ]
    if config.rollout.filter_groups is not None:
        lines.append("Groups that rollout.filter_groups drops are replaced by further prompts, which are not counted.")
    if getattr(config.rollout, "candidates", None) is not None:
        lines.append("Candidates of rollout.candidates that are not trained on are not counted.")
    return lines


def _steps(config: RunConfig) -> str:
    """Optimizer steps per update."""
    trainer, each = config.trainer, config.steps_per_update
    if each == 1:
        return "An update is one optimizer step on all of its samples"
    size = trainer.mini_batch_size or config.samples
    rest = config.samples % size
    text = f"An update is {each:,} optimizer steps of {size:,} samples (trainer.mini_batch_size"
    text += f", trainer.epochs {trainer.epochs})" if trainer.epochs > 1 else ")"
    return f"{text}; the last one of an epoch has {rest:,}" if rest else text


def opening_message(config: RunConfig, items: int, *, done: int, console: Console | None = None) -> None:
    """Print it.

    Args:
        config, items, done: as ``plan`` takes them.
        console: where to print; None is standard output.
    """
    console = console or terminal.console()
    # an own reward comes beside those of the recipe
    weights = ", ".join(f"{label} (weight {one.weight:g})" for label, one in config.rewards.items() if one.counts)
    judged = [f"Rewards: {weights}."] if weights else []
    for line in [*plan(config, items, done=done), *judged, *(f"Note: {caution}." for caution in config.cautions())]:
        console.print(escape(line), highlight=False, soft_wrap=not console.is_terminal)


def closing_message(folder: RunFolder, config: RunConfig, outcome: str, *, console: Console | None = None) -> None:
    """Print it.

    Args:
        folder: of the run.
        config: of the run.
        outcome: how it ended, e.g. "finished" or "stopped by SIGTERM".
        console: where to print; None is standard output.
    """
    console = console or terminal.console()
    run = Summary.read(folder)
    console.print()
    console.print(
        f"[bold]{escape(outcome[:1].upper() + outcome[1:])}[/bold] after {run.updates} of {config.steps} updates"
    )
    if run.before is not None and run.after is not None:
        measures = numbers(run)
        console.print(_table(measures))
        if measures["moved"]:
            console.print(f"[dim]{escape(measures['moved'])}; see the report[/dim]", highlight=False)
    if headline(run):
        console.print(f"[bold]{escape(headline(run))}[/bold]", highlight=False)
    for kind, text in verdict(run):
        console.print(f"{MARKS[kind]} {escape(text)}", highlight=False)
    for warning in run.warnings():
        console.print(f"[yellow]![/yellow] {escape(warning)}", highlight=False)
    console.print()
    for name, value in _places(folder, run) + next_steps(folder, run):
        # one line each on any terminal, so that paths and commands can be copied
        console.print(f"[dim]{name:<30}[/dim] {escape(value)}", highlight=False, soft_wrap=True)


def _table(measures: Mapping[str, Any]) -> Table:
    table = Table("", *measures["heads"], box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in measures["rows"]:
        table.add_row(escape(row["title"]), *(cell["text"] for cell in row["cells"]))
    return table


def _places(folder: RunFolder, run: Summary) -> list[tuple[str, str]]:
    last = folder.validation(run.after[STEP]) if run.after else folder.path / "validation"
    places = [("report", folder.report), (run.words.samples, last / "grid.png"), ("metrics", folder.metrics)]
    places += [("curves", folder.tensorboard), ("checkpoints", folder.checkpoints), ("profiles", folder.profiles)]
    return [(name, str(path)) for name, path in places if path.exists()]
