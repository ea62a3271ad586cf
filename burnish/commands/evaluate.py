"""burnish eval: judge a run, one of its checkpoints, or a recipe's untrained model on held-out prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import closing

from rich.markup import escape
from rich.table import Table

from burnish.commands.opening import open_run, output_folder
from burnish.config.overrides import read_overrides
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import ConfigError, UserError

# options that decide what is judged, and how
_READ = re.compile(
    r"(task|plugins|model(\..*)?|data\.(?!train_batch_size|shuffle|fit)\w+|rewards(\..*)?|environment(\..*)?|scoring\..*"
    r"|threads|seed|ema(\..*)?|algorithm\.name|validation\.(n|max_prompts|temperature|top_k|top_p|min_p)"
    r"|rollout\.(num_inference_steps|guidance_scale|guidance_rescale|embedded_guidance|height|width|schedule|shift"
    r"|max_sequence_length|merge_lora|batch_size|max_new_tokens|stop|engine|vllm(\..*)?))$"
)


def evaluate(source: str, overrides: Sequence[str], *, output: str | None) -> int:
    """Sample, score and print the validation metrics; the same noise as during training, so numbers compare.

    Args:
        source: run folder, checkpoint folder, or recipe.
        overrides: dotted options that differ from the run's, e.g. ``validation.n=16``.
        output: folder for metrics.json, pictures and verdicts; None only prints.
    """
    _refuse_unread(overrides)
    assembly, update = open_run(source, overrides)
    target = output_folder(output) if output else None
    with closing(assembly), closing(assembly.scorer), assembly.trained_weights():
        metrics = assembly.evaluate(target, n=assembly.config.validation.n)
    table = Table("metric", "value", title=escape(f"{source} after {update} policy updates"))
    table.columns[1].justify = "right"
    for name, value in metrics.items():
        table.add_row(escape(name), f"{value:.4f}")
    console = terminal.console()
    console.print(table)
    if target:
        with writing(target):
            (target / "metrics.json").write_text(json.dumps({"update": update} | metrics, indent=1) + "\n")
        console.print(f"Pictures and verdicts are in [bold]{escape(str(target))}[/bold]")
    if metrics["val-aux/missing"] == 1:
        raise UserError(f"no sample has a reward, so that {source} is not judged; the warnings above say why")
    return 0


def _refuse_unread(overrides: Sequence[str]) -> None:
    for option in read_overrides(overrides):
        if not _READ.match(option):
            raise ConfigError(
                f"{option} is given, but judging never reads it: it is an option of training; leave it out, or train "
                "with it"
            )
