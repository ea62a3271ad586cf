"""The prompts of a suite."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from burnish.config.errors import wrong_choice
from burnish.config.tasks import DEFAULT
from burnish.data.prompts import prompt_of, read_prompts
from burnish.data.questions import question, read_questions
from burnish.data.records import Record
from burnish.data.sets import SETS, prepared
from burnish.evaluation.suite import Suite, checked
from burnish.options.data import PromptOptions
from burnish.options.language import LanguageDataOptions
from burnish.types.prompt import Part, Prompt
from burnish.utils.errors import UserError

PREPARED = "prepared:"  # before the name of a set
UNREAD = "-"  # in the place of files that are not read


def read_suite_prompts(suite: Suite) -> list[Prompt]:
    """The prompts of a suite, in order, each with the suite's instruction behind it.

    Raises:
        UserError: a file can't be read, or has wrong records.
    """
    options = data_options(suite)
    files = [_file(suite, name) for name in ([suite.prompts] if isinstance(suite.prompts, str) else suite.prompts)]
    prompts = read_prompts(files, options) if suite.task == DEFAULT else read_questions(files, options)
    return [_instructed(prompt, suite.instruction) for prompt in chosen(suite, prompts)]


def record_prompt(suite: Suite, values: dict[str, Any]) -> Prompt:
    """The prompt of a record of the suite's own file.

    Raises:
        UserError: something in it is wrong.
    """
    record, options = Record(f"a sanity check of suite {suite.name}", Path(suite.folder), values), data_options(suite)
    try:
        prompt = prompt_of(record, options) if suite.task == DEFAULT else question(record, options)
    except ValueError as error:
        raise UserError(f"a sanity check of suite {suite.name} {error}") from None
    return _instructed(prompt, suite.instruction)


def chosen(suite: Suite, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The subset that the suite asks for: always the same prompts, whatever their order in the file."""
    if suite.max_prompts is None or suite.max_prompts >= len(prompts):
        return list(prompts)
    order = sorted(range(len(prompts)), key=lambda i: (_hash(*suite.noise, prompts[i].uid), i))
    return [prompts[i] for i in sorted(order[: suite.max_prompts])]


def prompts_digest(prompts: Sequence[Prompt]) -> str:
    """Hash of prompts in their order."""
    return _hash(*(prompt.uid for prompt in prompts))


def _hash(*parts: str | int) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def data_options(suite: Suite) -> Any:
    """How the prompts of a suite are read: options of the data section of its task."""
    kind: Any = PromptOptions if suite.task == DEFAULT else LanguageDataOptions
    # a language model's section names its files, too, which a suite does in its own place
    tree = suite.data if suite.task == DEFAULT else suite.data | {"train_files": UNREAD}
    return checked(kind, tree, "data.", f"suite {suite.name}")


def _file(suite: Suite, name: str) -> str:
    """A file of a suite, a named set, or a path from the folder of the suite where that is there.

    Raises:
        UserError: the set is not prepared; the message names the command.
    """
    if name.startswith(PREPARED):
        named = name.removeprefix(PREPARED)
        if named not in SETS:
            raise UserError(f"suite {suite.name}: {wrong_choice('prompts', named, list(SETS))}")
        return str(prepared(named))
    beside = Path(suite.folder) / name
    return str(beside) if not Path(name).is_absolute() and beside.exists() else name


def _instructed(prompt: Prompt, instruction: str) -> Prompt:
    if not instruction:
        return prompt
    *before, last = prompt.turns
    message = replace(last, parts=(*last.parts, Part("text", instruction)))
    return replace(prompt, text=prompt.text + instruction, messages=(*before, message))
