"""burnish eval: judge a run, one of its checkpoints, or a recipe's untrained model on held-out prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table

from burnish.commands.opening import open_run
from burnish.disk import writing
from burnish.errors import UserError
from burnish.judging import judge


def evaluate(source: str, overrides: Sequence[str], *, output: str | None) -> int:
    """Sample, score and print the validation metrics; the same noise as during training, so numbers compare.

    Args:
        source: run folder, checkpoint folder, or recipe.
        overrides: dotted options that differ from the run's, e.g. ``validation.n=16``.
        output: folder for metrics.json, pictures and verdicts; None only prints.
    """
    session, update = open_run(source, overrides)
    target = Path(output) if output else None
    with closing(session), closing(session.scorer), session.trained_weights():
        metrics = judge(session, target, n=session.config.validation.n)
    table = Table("metric", "value", title=f"{source} after {update} policy updates")
    table.columns[1].justify = "right"
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}")
    console = Console()
    console.print(table)
    if target:
        with writing(target):
            (target / "metrics.json").write_text(json.dumps({"update": update} | metrics, indent=1) + "\n")
        console.print(f"Pictures and verdicts are in [bold]{target}[/bold]")
    if metrics["val-aux/missing"] == 1:
        raise UserError(f"no sample has a reward, so that {source} is not judged; the warnings above say why")
    return 0
