"""burnish eval: evaluate a run, one of its checkpoints, or a recipe's untrained model on held-out prompts."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from burnish.commands.opening import open_model, open_run, output_folder
from burnish.config.yaml_text import read_overrides
from burnish.evaluation.records import Evaluation, Shard, changes, check_comparable, shown
from burnish.evaluation.suite import read_suite, suite_names
from burnish.utils import terminal
from burnish.utils.disk import write_atomically
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.paths import check_output
from burnish.utils.reading import checked_path

SECTION = "suite."  # before options of a suite on the command line
# options that an evaluation reads
_READ = re.compile(
    r"(task|plugins|model(\..*)?|data\.(?!train_batch_size|shuffle|fit)\w+|rewards(\..*)?|environment(\..*)?|scoring\..*"
    r"|threads|seed|ema(\..*)?|algorithm\.name|validation\.(n|max_prompts|temperature|top_k|top_p|min_p"
    r"|num_inference_steps|guidance_scale|solver|height|width)"
    r"|rollout\.(num_inference_steps|guidance_scale|embedded_guidance|height|width|solver|schedule|shift"
    r"|max_sequence_length|merge_lora|batch_size|max_new_tokens|stop|engine|vllm(\..*)?))$"
)


def evaluate(
    source: str | None = None,
    overrides: Sequence[str] = (),
    *,
    output: str | None = None,
    suite: str | None = None,
    shard: str | None = None,
    compared: tuple[str, str] | None = None,
    list_all: bool = False,
) -> int:
    """Evaluate a trained or untrained model.

    Examples:
        burnish eval runs/quickstart                        a run: its newest weights
        burnish eval runs/quickstart validation.n=16 --output judged
        burnish eval quickstart                             a recipe: the model before training
        burnish eval quickstart rollout.guidance_scale=3.0
        burnish eval runs/quickstart --suite quickstart --output judged      a suite, with intervals; goes on if killed
        burnish eval my_model+my_lora --suite geneval --shard 1/2 --output judged
        burnish eval --compare before after                 two evaluations of a suite, paired by prompt

    Args:
        source: folder of a run or of one of its checkpoints, or a recipe for its untrained model; with --suite also
            MODEL or MODEL+LORA, folders or a model of the hub
        overrides (OPTION=VALUE): options of the run as section.option=value, with the value in YAML;
            suite.OPTION=VALUE changes the suite
        output (-o, --output DIR): also write metrics, samples and scores to this folder
        suite (NAME): a suite (--list), or the path of one in YAML
        shard (I/N): only part I of N of the suite; the others go to the same folder
        compared (--compare BEFORE AFTER): what changed between two evaluations
        list_all (--list): list the suites
    """
    asked = [name for name, given in (("--compare", compared), ("--list", list_all)) if given]
    others = (("--suite", suite), ("--shard", shard), (str(source), source))
    if asked and (also := asked[1:] + [name for name, given in others if given]):
        raise UserError(f"{asked[0]} reads evaluations that are there, and is given with {also[0]}; give one")
    if not asked and source is None:
        raise UserError("SOURCE is missing: give the folder of a run, a recipe, or with --suite a model")
    if shard and not suite:
        raise UserError("--shard is given without --suite; a validation is not divided")
    if output is not None:
        check_output(checked_path(output, "--output"), "eval")
    if list_all:
        suites = [read_suite(name) for name in suite_names()]
        heads = ("suite", "what it measures", "licence of its prompts")
        terminal.table(heads, [(one.name, one.about, one.licence) for one in suites])
    elif compared is not None:
        _compare(*compared)
    elif suite is not None:
        _evaluate_suite(str(source), overrides, suite, output=output, shard=shard)
    else:
        _validate(str(source), overrides, output=output)
    return 0


def _validate(source: str, overrides: Sequence[str], *, output: str | None) -> None:
    """Sample, score and print the validation metrics, with the same noise as during training."""
    _refuse_unread(overrides)
    why = (
        "eval samples with validation.{name}, which is {own} here; give validation.{name} in its place, or set it to "
        "null"
    )
    assembly, update = open_run(
        source, overrides, check=lambda config: _refuse_covered(overrides, ("rollout",), vars(config.validation), why)
    )
    target = output_folder(output, "eval") if output else None
    with closing(assembly), closing(assembly.scorer), assembly.trained_weights():
        with terminal.progress("Evaluating") as assembly.tell:
            metrics = assembly.evaluate(target, n=assembly.config.validation.n)
    rows = [(name, "–" if math.isnan(value) else f"{value:.4f}") for name, value in metrics.items()]
    terminal.table(("metric", "value"), rows, f"{source} after {update} policy updates")
    if target:
        write_atomically(target / "metrics.json", (json.dumps({"update": update} | metrics, indent=1) + "\n").encode())
        terminal.say("Samples and scores are in ", (str(target), "bold"))
    if metrics["val-aux/missing"] == 1:
        raise UserError(f"{source} is not evaluated: every reward is missing; see the warnings above")


def _refuse_covered(overrides: Sequence[str], sections: Sequence[str], covering: Mapping[str, Any], why: str) -> None:
    """Refuse an option of a section in whose place something else has one of its own."""
    for option in read_overrides(overrides):
        section, _, name = option.partition(".")
        if section in sections and (own := covering.get(name)) is not None:
            raise ConfigError(f"{option} is given, but {why.format(name=name, own=own)}")


def _refuse_unread(overrides: Sequence[str]) -> None:
    for option in read_overrides(overrides):
        if not _READ.match(option):
            raise ConfigError(
                f"{option} is given, but eval never reads it: it is an option of training; remove it, or train with it"
            )


# suites


def _evaluate_suite(
    source: str, overrides: Sequence[str], suite: str, *, output: str | None, shard: str | None
) -> None:
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
    own = [one.removeprefix(SECTION) for one in overrides if one.startswith(SECTION)]
    model_options = [one for one in overrides if not one.startswith(SECTION)]
    wanted = read_suite(suite, read_overrides(own))
    _refuse_unread(model_options)
    pinning = f"{SECTION}{'drawing' if 'num_inference_steps' in wanted.settings else 'responding'}"
    why = f"the suite pins {{name}} to {{own}}; to change it, which makes results incomparable, give {pinning}.{{name}}"
    _refuse_covered(model_options, ("rollout", "validation"), wanted.settings, why)
    assembly, update = open_model(source, wanted.task, model_options) or open_run(source, model_options)
    target = output_folder(output, "eval") if output else None
    with (
        closing(assembly),
        closing(runner := assembly.suite_runner(assembly, wanted)),
        tempfile.TemporaryDirectory() as away,
    ):
        runner.check()
        with assembly.trained_weights(), terminal.progress(f"Suite {wanted.name}") as progress:
            result = runner.run(
                target or Path(away), source=source, update=update, shard=part or (1, 1), progress=progress
            )
    _show(result, f"{wanted.title} of {source}" + (f", shard {shard}" if shard else ""), target)


def _compare(before: str, after: str) -> None:
    """Show what changed between two evaluations of a suite, paired by prompt."""
    was, now = (Evaluation.read(checked_path(place, "--compare")) for place in (before, after))
    differing = check_comparable(was.header, now.header)
    rows = []
    for name, change in changes(was, now).items():
        values = [(one.result["tasks"] | {"overall": one.result["overall"]})[name] for one in (was, now)]
        cells = [shown(values[0], ".4f"), shown(values[1], ".4f"), shown(change, "+.4f")]
        rows.append((name, *(" ".join(cell).rstrip() for cell in cells)))
    terminal.table(("", "before", "after", "change"), rows, f"{was.header.suite}: {before} and {after}")
    for problem in differing:
        terminal.say((f"Not the model alone: {problem}", "yellow"))
    for name, one in (("before", was), ("after", now)):
        _doubt(one.result, f"The numbers {name} are")
    terminal.say("Changes are means over the same prompts with the same noise; brackets hold 95 % of the bootstrap.")


def _shard(text: str | None) -> Shard | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise UserError(f"--shard is {text!r}; write i/n with i from 1 to n, as in 1/4")
    return number, count


def _show(result: Mapping[str, Any], title: str, folder: Path | None) -> None:
    metric = result["primary_metric"]
    rows = {f"{metric} (overall)": result["overall"]}
    rows |= result["tasks"] if len(result["tasks"]) > 1 else {}
    rows |= {name: column for name, column in result["columns"].items() if name not in (metric, "reward")}
    cells = [(name, *shown(row, ".4f"), row["prompts"]) for name, row in rows.items()]
    terminal.table(("", "value", "95 % interval", "prompts"), cells, title)
    if result["changed"]:
        terminal.say((f"Options of the suite were changed: {', '.join(result['changed'])}", "yellow"))
    if result["unwatched"]:
        terminal.say(f"No sanity check looks at {', '.join(result['unwatched'])}.")
    _doubt(result, "This result is")
    if folder:
        terminal.say("Records and result are in ", (str(folder), "bold"))


def _doubt(result: Mapping[str, Any], subject: str) -> None:
    for line in [] if result["valid"] else [f"{subject} not to be believed:", *result["why_not"]]:
        terminal.say((line, "bold red"))
