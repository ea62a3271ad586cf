"""burnish data: named sets, written to a folder, and records as Burnish reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from burnish.config import load
from burnish.config.load import recipe_names
from burnish.config.tasks import task_named
from burnish.data.sets import FOLDER, SETS, prepare, prepared
from burnish.types.prompt import Prompt
from burnish.utils import terminal
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.json_text import parse_json
from burnish.utils.reading import checked_path

DEFAULT_RECIPE, LANGUAGE_RECIPE = "quickstart", "vlm_quickstart"  # by the keys of the first, unless said otherwise


def data(
    action: Literal["list", "prepare", "show"],
    source: str | None = None,
    overrides: Sequence[str] = (),
    *,
    output: str | None = None,
    limit: Annotated[int, 1, 10_000] = 3,
    recipe: str | None = None,
) -> int:
    """List, prepare and look at data.

    Examples:
        burnish data list                                     sets that recipes and suites use
        burnish data prepare geneval                          writes data/geneval/train.jsonl and test.jsonl
        burnish data show prompts.csv                         the first records, as a run would read them
        burnish data show questions.jsonl --recipe vlm_quickstart data.prompt_key=ask
        burnish data show qwen25_vl/grpo                      the training data of a recipe

    Args:
        action (list|prepare|show): what to do
        source (NAME): a set; to be shown also a file, a hub id or a recipe
        overrides (OPTION=VALUE): show: options of the section data
        output (-o, --output DIR): prepare: folder in which the set's is made (data)
        limit (-n, --limit N): show: number of records
        recipe (RECIPE): show: read a file as this recipe does (quickstart)
    """
    refused = {
        "list": (source is not None, "burnish data list takes nothing more; remove it"),
        "prepare": (bool(overrides) or recipe is not None, "options and --recipe belong to: burnish data show"),
        "show": (output is not None, "--output belongs to: burnish data prepare"),
    }
    wrong, why = refused[action]
    if wrong:
        raise UserError(why)
    if action == "list":
        sets = [(name, f"{one.what}. {', '.join(one.splits)}. Licence: {one.licence}") for name, one in SETS.items()]
        terminal.table(("", ""), sets)
        terminal.say("\nburnish data prepare NAME writes one below data/, where recipes look for it.")
        return 0
    if source is None:
        wanted = "the name of a set" if action == "prepare" else "a file, a set or a recipe"
        raise UserError(f"burnish data {action} needs {wanted}; sets are {', '.join(SETS)}")
    if action == "show":
        return _show(source, overrides, limit, recipe)
    if source not in SETS:
        raise UserError(f"{source} is not a set that Burnish knows; sets are {', '.join(SETS)}")
    for path, count in prepare(source, FOLDER if output is None else checked_path(output, "--output")):
        terminal.say(f"{count} records in {path}")
    terminal.say(f"Licence: {SETS[source].licence}")
    return 0


def _show(source: str, overrides: Sequence[str], limit: int, recipe: str | None) -> int:
    """Print the first records of a file, a set or a recipe's training data, as a run would read them."""
    if source in recipe_names() or source.endswith((".yaml", ".yml")):
        if recipe is not None:
            raise UserError(f"{source} is a recipe itself; leave --recipe out")
        config = load(source, overrides)
    else:
        path = str(prepared(source)) if source in SETS else source
        task = SETS[source].recipe if source in SETS else DEFAULT_RECIPE
        config = load(recipe or task, [f"data.train_files={json.dumps(path)}", *overrides])
    try:
        prompts = task_named(config.task).read(config.data.train_files, config.data)
    except ConfigError as error:
        if config.origin is not None and config.origin.recipe == DEFAULT_RECIPE not in (source, recipe):
            error.way_out += f"; or read them as a language model's: --recipe {LANGUAGE_RECIPE}"
        raise
    for prompt in prompts[:limit]:
        terminal.say("\n".join([*_lines(prompt), ""]))
    terminal.say(f"{len(prompts[:limit])} of {terminal.counted(len(prompts), 'records')}")
    return 0


def _lines(prompt: Prompt) -> Iterator[str]:
    yield prompt.where
    for turn in prompt.turns:
        said = "".join(part.text if part.kind == "text" else f"<{part.kind}>" for part in turn.parts)
        said = "\n".join(filter(None, [said, replace(turn, parts=()).said])) if turn.calls else said
        yield f"  {turn.role}: {terminal.cut(said)}".replace("\n", "\n    ")
        for key, value in (parse_json(turn.more) if turn.more else {}).items():
            yield f"    {key}: {terminal.cut(str(value))}".replace("\n", "\n    ")
    if prompt.tools:
        yield f"  tools: {', '.join(one['function']['name'] for one in parse_json(prompt.tools))}"
    media: list[tuple[str, Any]] = [(one.kind, one) for one in prompt.media] + list(prompt.inputs)
    yield from (f"  {name}: {one.path or 'in the record'}" for name, one in media)
    for name in ("negative", "answer", "label"):
        if value := getattr(prompt, name):
            yield f"  {name}: {terminal.cut(value)}"
    if prompt.source != "default":
        yield f"  data_source: {prompt.source}"
    if prompt.info:
        yield f"  for rewards: {terminal.cut(json.dumps(prompt.info, ensure_ascii=False, default=str))}"
