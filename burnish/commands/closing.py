"""What a run says at its end: what was reached, where everything is, and what one can do next."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from burnish.config import RunConfig
from burnish.config.run_folder import STEP, RunFolder
from burnish.report.summary import Summary, next_steps
from burnish.report.verdict import headline, verdict
from burnish.utils import terminal

MARKS = {"gained": "[blue]+[/blue]", "kept": "[blue]=[/blue]", "lost": "[yellow]−[/yellow]", "weigh": "·"}


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
        console.print(_numbers(run))
    if headline(run):
        console.print(f"[bold]{escape(headline(run))}[/bold]", highlight=False)
    for point in verdict(run):
        console.print(f"{MARKS[point.kind]} {escape(point.text)}", highlight=False)
    for warning in run.warnings():
        console.print(f"[yellow]![/yellow] {escape(warning)}", highlight=False)
    console.print()
    for name, value in _places(folder, run) + next_steps(folder, run):
        # one line each, however narrow the terminal is: paths and commands are there to be copied
        console.print(f"[dim]{name:<30}[/dim] {escape(value)}", highlight=False, soft_wrap=True)


def _numbers(run: Summary) -> Table:
    assert run.after is not None
    table = Table("", "before", f"after {run.after[STEP]}", box=None, padding=(0, 2, 0, 0))
    if run.reference is not None:
        table.add_column(f"guidance {run.reference['guidance_scale']:g}, untrained")
    for column in table.columns[1:]:
        column.justify = "right"
    for measure in run.measures():
        rows = [run.before, run.after] + ([run.reference] if run.reference is not None else [])
        table.add_row(escape(measure.title), *(measure.show(measure.of(row)) for row in rows))
    return table


def _places(folder: RunFolder, run: Summary) -> list[tuple[str, str]]:
    last = folder.validation(run.after[STEP]) if run.after else folder.path / "validation"
    places = [("report", folder.report), ("pictures", last / "grid.png"), ("metrics", folder.metrics)]
    places += [("curves", folder.tensorboard), ("checkpoints", folder.checkpoints), ("profiles", folder.profiles)]
    return [(name, str(path)) for name, path in places if path.exists()]
