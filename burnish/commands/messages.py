"""What a run prints at its start (its sizes) and at its end (results, files, next steps)."""

from __future__ import annotations

from burnish.config import RunConfig
from burnish.config.run_folder import STEP, RunFolder
from burnish.report.overview import numbers
from burnish.report.summary import Summary, next_steps
from burnish.report.verdict import headline, verdict
from burnish.utils import terminal

MARKS = {"gained": ("+", "blue"), "kept": ("=", "blue"), "lost": ("−", "yellow"), "weigh": ("·", "")}


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


def opening_message(config: RunConfig, items: int, *, done: int) -> None:
    """Print the sizes of a run, with the options that decide them.

    Args:
        config: of the run.
        items: prompts or records of the training data.
        done: updates of earlier attempts.
    """
    holds, counted = config.algorithm.needs().data, terminal.counted
    learned = config.words.samples if config.online else holds
    begun = f"; {done:,} of them are done" if done else ""
    epochs = config.steps * config.records / items
    terminal.say(
        f"{counted(config.steps, 'updates')} of {counted(config.samples, learned)} ({config.samples_from}){begun}.\n"
        f"{_steps(config)}.\n"
        f"The run: {counted(config.steps * config.samples, learned)}, "
        f"{counted(config.optimizer_steps, 'optimizer steps')}, {epochs:,.3g} epochs over {counted(items, holds)}."
    )
    if config.rollout.filter_groups is not None:
        terminal.say("Groups that rollout.filter_groups drops are replaced by further prompts, which are not counted.")
    if getattr(config.rollout, "candidates", None) is not None:
        terminal.say("Candidates of rollout.candidates that are not trained on are not counted.")
    # an own reward comes beside those of the recipe
    if weights := [f"{label} (weight {one.weight:g})" for label, one in config.rewards.items() if one.counts]:
        terminal.say(f"Rewards: {', '.join(weights)}.")
    for caution in config.cautions():
        terminal.say(f"Note: {caution}.")


def closing_message(folder: RunFolder, config: RunConfig, outcome: str) -> None:
    """Print it.

    Args:
        folder: of the run.
        config: of the run.
        outcome: how it ended, e.g. "finished" or "stopped by SIGTERM".
    """
    run = Summary.read(folder)
    terminal.say("\n", (outcome[:1].upper() + outcome[1:], "bold"), f" after {run.updates} of {config.steps} updates")
    if run.before is not None and run.after is not None:
        measures = numbers(run)
        rows = [(row["title"], *(cell["text"] for cell in row["cells"])) for row in measures["rows"]]
        terminal.table(("", *measures["heads"]), rows)
        if measures["moved"]:
            terminal.say((f"{measures['moved']}; see the report", "dim"))
    if headline(run):
        terminal.say((headline(run), "bold"))
    for kind, text in verdict(run):
        terminal.say(MARKS[kind], f" {text}")
    for warning in run.warnings():
        terminal.say(("!", "yellow"), f" {warning}")
    terminal.say()
    for name, value in _places(folder, run) + next_steps(folder, run):
        terminal.say((f"{name:<30} ", "dim"), value)


def _places(folder: RunFolder, run: Summary) -> list[tuple[str, str]]:
    last = folder.validation(run.after[STEP]) if run.after else folder.path / "validation"
    places = [("report", folder.report), (run.words.samples, last / "grid.png"), ("metrics", folder.metrics)]
    places += [("curves", folder.tensorboard), ("checkpoints", folder.checkpoints), ("profiles", folder.profiles)]
    return [(name, str(path)) for name, path in places if path.exists()]
