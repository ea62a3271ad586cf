"""burnish eval: evaluate a run, one of its checkpoints, or a recipe's untrained model on held-out prompts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import closing
from functools import partial

from rich.markup import escape
from rich.table import Table

from burnish.commands.opening import open_run, output_folder
from burnish.config import RunConfig
from burnish.config.overrides import read_overrides
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.paths import check_output
from burnish.utils.reading import checked_path

# options that an evaluation reads
_READ = re.compile(
    r"(task|plugins|model(\..*)?|data\.(?!train_batch_size|shuffle|fit)\w+|rewards(\..*)?|environment(\..*)?|scoring\..*"
    r"|threads|seed|ema(\..*)?|algorithm\.name|validation\.(n|max_prompts|temperature|top_k|top_p|min_p"
    r"|num_inference_steps|guidance_scale|solver|height|width)"
    r"|rollout\.(num_inference_steps|guidance_scale|embedded_guidance|height|width|solver|schedule|shift"
    r"|max_sequence_length|merge_lora|batch_size|max_new_tokens|stop|engine|vllm(\..*)?))$"
)


def evaluate(
    source: str | None,
    overrides: Sequence[str],
    *,
    output: str | None,
    suite: str | None = None,
    shard: str | None = None,
    merged: Sequence[str] | None = None,
    compared: Sequence[str] | None = None,
    list_all: bool = False,
) -> int:
    """Evaluate a model, or show what evaluations say.

    Args:
        source: run folder, checkpoint folder or recipe; for a suite also a model with or without an adapter.
        overrides: dotted options that differ from the run's, e.g. ``validation.n=16``.
        output: folder for what is recorded; None only prints.
        suite: name or file of the suite that is used; None takes the run's validation.
        shard: i/n, which part of the suite.
        merged: folders of shards that are put together instead.
        compared: two folders whose results are compared instead.
        list_all: print the suites instead.
    """
    from burnish.commands import suites

    _refuse_mixed(source, suite, shard, merged, compared, list_all)
    if output is not None:
        check_output(checked_path(output, "--output"), "eval")
    if list_all:
        return suites.list_suites()
    if compared is not None:
        return suites.compare(*compared)
    if merged is not None:
        return suites.merge(merged, output=output)
    assert source is not None, "refused above"
    if suite is not None:
        _refuse_unread([one for one in overrides if not one.startswith(suites.SECTION)])
        return suites.evaluate_suite(source, overrides, suite, output=output, shard=shard)
    return _validate(source, overrides, output=output)


def _refuse_mixed(
    source: str | None,
    suite: str | None,
    shard: str | None,
    merged: Sequence[str] | None,
    compared: Sequence[str] | None,
    list_all: bool,
) -> None:
    """Refuse arguments of which only one can be meant."""
    asked = [name for name, given in (("--merge", merged), ("--compare", compared), ("--list", list_all)) if given]
    if len(asked) > 1 or (asked and (suite or shard)):
        raise UserError(f"{asked[0]} is given with {'--suite or --shard' if suite or shard else asked[1]}; give one")
    if asked and source is not None:
        raise UserError(f"{asked[0]} reads evaluations that are there, and no model; leave {source} out")
    if not asked and source is None:
        raise UserError("SOURCE is missing: give the folder of a run, a recipe, or with --suite a model")
    if shard and not suite:
        raise UserError("--shard is given without --suite; a validation is not divided")


def _validate(source: str, overrides: Sequence[str], *, output: str | None) -> int:
    """Sample, score and print the validation metrics, with the same noise as during training."""
    _refuse_unread(overrides)
    assembly, update = open_run(source, overrides, check=partial(_refuse_covered, overrides))
    target = output_folder(output, "eval") if output else None
    with closing(assembly), closing(assembly.scorer), assembly.trained_weights():
        with terminal.progress("Evaluating") as assembly.tell:
            metrics = assembly.evaluate(target, n=assembly.config.validation.n)
    table = Table("metric", "value", title=escape(f"{source} after {update} policy updates"))
    table.columns[1].justify = "right"
    for name, value in metrics.items():
        table.add_row(escape(name), "–" if math.isnan(value) else f"{value:.4f}")
    console = terminal.console()
    console.print(table)
    if target:
        with writing(target):
            (target / "metrics.json").write_text(json.dumps({"update": update} | metrics, indent=1) + "\n")
        console.print(f"Samples and scores are in [bold]{escape(str(target))}[/bold]")
    if metrics["val-aux/missing"] == 1:
        raise UserError(f"{source} is not evaluated: every reward is missing; see the warnings above")
    return 0


def _refuse_covered(overrides: Sequence[str], config: RunConfig) -> None:
    """Refuse an option of rollout in whose place the run's validation has one of its own."""
    for option in read_overrides(overrides):
        section, _, name = option.partition(".")
        if section == "rollout" and (own := vars(config.validation).get(name)) is not None:
            raise ConfigError(
                f"{option} is given, but eval samples with validation.{name}, which is {own} here; give "
                f"validation.{name} in its place, or set it to null"
            )


def _refuse_unread(overrides: Sequence[str]) -> None:
    for option in read_overrides(overrides):
        if not _READ.match(option):
            raise ConfigError(
                f"{option} is given, but eval never reads it: it is an option of training; leave it out, or train "
                "with it"
            )
