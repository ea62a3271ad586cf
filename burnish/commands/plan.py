"""What a run says before it begins: how many updates, samples, optimizer steps and epochs there will be."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from burnish.config import RunConfig
from burnish.config.tasks import task_named
from burnish.utils import terminal


def plan(config: RunConfig, items: int, *, done: int = 0) -> list[str]:
    """The sizes of a run, one sentence each, with the options that they come from.

    Args:
        config: of the run.
        items: prompts or records in the data that is learned on.
        done: updates that an earlier attempt has made.
    """
    holds = config.algorithm.needs().data
    learned = task_named(config.task).words.samples if config.online else holds
    first = f"{config.steps:,} updates of {config.samples:,} {learned} ({config.samples_from})"
    if done:
        first += f"; {done:,} of them are done"
    drawn = config.steps * config.records
    lines = [
        f"{first}.",
        f"{_steps(config)}.",
        f"The run: {config.steps * config.samples:,} {learned}, {config.optimizer_steps:,} optimizer steps, "
        f"{drawn / items:,.3g} epochs over {items:,} {holds}.",
    ]
    if config.rollout.filter_groups is not None:
        lines.append("Groups that rollout.filter_groups drops are replaced by further prompts, which are not counted.")
    if getattr(config.rollout, "candidates", None) is not None:
        lines.append("The pictures that rollout.candidates draws to choose from are not counted.")
    return lines


def _steps(config: RunConfig) -> str:
    """How an update becomes optimizer steps."""
    trainer, each = config.trainer, config.steps_per_update
    if each == 1:
        return "All samples of an update make one optimizer step"
    size = trainer.mini_batch_size or config.samples
    rest = config.samples % size
    text = f"An update makes {each:,} optimizer steps of {size:,} samples (trainer.mini_batch_size"
    text += f", trainer.epochs {trainer.epochs})" if trainer.epochs > 1 else ")"
    return f"{text}; the last one of a pass has {rest:,}" if rest else text


def opening_message(config: RunConfig, items: int, *, done: int, console: Console | None = None) -> None:
    """Print it.

    Args:
        config, items, done: as ``plan`` takes them.
        console: where to print; None is standard output.
    """
    console = console or terminal.console()
    for line in [*plan(config, items, done=done), *(f"Note: {caution}." for caution in config.cautions())]:
        console.print(escape(line), highlight=False, soft_wrap=not console.is_terminal)
