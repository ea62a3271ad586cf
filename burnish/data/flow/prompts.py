"""Prompts from files. Every problem is reported with its file and line, all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from burnish.data.lines import decoded, is_text, parse_object, read_lines, told
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError

# the field's usual keys, by what they mean here
KEYS = {
    "text": ("prompt", "text", "caption"),
    "negative": ("negative_prompt",),
    "answer": ("answer", "ground_truth", "target"),
    "source": ("data_source",),
}


def read_prompts(path: Path) -> list[Prompt]:
    """Read prompts, one a line: plain text (.txt), or JSON objects (.jsonl) under the keys of ``KEYS``.

    Blank lines are skipped. Other keys of a JSON object are the user's own and are not read.

    Raises:
        UserError: the file can't be read, has no prompt, or has wrong lines; the message names file and line.
    """
    if path.suffix not in (".txt", ".jsonl"):
        raise UserError(f"{path} is neither .txt (one prompt a line) nor .jsonl (one object a line); give one of these")
    prompts: list[Prompt] = []
    problems: list[str] = []
    for number, line in read_lines(path):
        try:
            text = decoded(line)
            if text:
                where = f"{path}:{number}"
                plain = path.suffix == ".txt"
                prompts.append(Prompt(text=text, where=where) if plain else prompt_of(parse_object(text), where))
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        raise told(problems)
    if not prompts:
        raise UserError(f"{path} holds no prompt; write one a line")
    return prompts


def prompt_of(record: Mapping[str, Any], where: str = "") -> Prompt:
    """The prompt of a record that stands at ``where``.

    Raises:
        ValueError: it has none, or one that is no text.
    """
    fields: dict[str, Any] = dict(_fields(record))
    if "text" not in fields:
        raise ValueError(f"has no prompt; its keys are {', '.join(map(repr, record)) or 'none'}")
    if not fields["text"].strip():
        raise ValueError("has an empty prompt")
    return Prompt(**fields, where=where)


def _fields(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for field, keys in KEYS.items():
        found = [key for key in keys if record.get(key) is not None]
        if len(found) > 1:
            raise ValueError(f"has {found[0]!r} and {found[1]!r}, which mean the same; keep one")
        if found:
            value = record[found[0]]
            if field == "answer" and isinstance(value, int | float) and not isinstance(value, bool):
                value = str(value)
            if not isinstance(value, str):
                raise ValueError(f"{found[0]!r} is {value!r}; it must be text")
            if not is_text(value):
                raise ValueError(f"{found[0]!r} holds half of a surrogate pair, which is no character")
            yield field, value
