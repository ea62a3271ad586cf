"""Prompts from files. Every problem is reported with its file and line, all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from burnish.data.lines import decoded, parse_object, read_all, read_lines
from burnish.data.values import find, listed, text_of
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError

# keys of published data sets, by field of a prompt
KEYS = {
    "text": ("prompt", "text", "caption"),
    "negative": ("negative_prompt",),
    "answer": ("answer", "ground_truth", "target"),
    "source": ("data_source",),
}


def read_prompts(path: Path) -> list[Prompt]:
    """Read prompts, one a line: plain text (.txt), or JSON objects (.jsonl) under the keys of ``KEYS``.

    Blank lines are skipped, and so are other keys of JSON objects.

    Raises:
        UserError: the file can't be read, has no prompt, or has wrong lines; the message names file and line.
    """
    if path.suffix not in (".txt", ".jsonl"):
        raise UserError(f"{path} is neither .txt (one prompt a line) nor .jsonl (one object a line); give one of these")

    def read(where: str, line: bytes) -> Iterator[Prompt]:
        if text := decoded(line):
            yield Prompt(text=text, where=where) if path.suffix == ".txt" else prompt_of(parse_object(text), where)

    prompts = read_all(read_lines(path), read)
    if not prompts:
        raise UserError(f"{path} holds no prompts; write one per line")
    return prompts


def prompt_of(record: Mapping[str, Any], where: str = "") -> Prompt:
    """The prompt of a record; ``where`` is its file and line.

    Raises:
        ValueError: it has no prompt, or one that is not text.
    """
    fields: dict[str, Any] = {}
    for field, usual in KEYS.items():
        key, value = find(record, usual)
        if key:
            fields[field] = text_of(value, key, numbers=field == "answer")
    if "text" not in fields:
        raise ValueError(f"has no prompt; {listed(record)}")
    if not fields["text"].strip():
        raise ValueError("has an empty prompt")
    return Prompt(**fields, where=where)
