"""Prompts from files. Every problem is reported with its file and line, all of them at once."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.types import Prompt

# the field's usual keys, by what they mean here
KEYS = {
    "text": ("prompt", "text", "caption"),
    "negative": ("negative_prompt",),
    "answer": ("answer", "ground_truth", "target"),
    "source": ("data_source",),
}
SHOWN = 10  # problems that one message lists


def read_prompts(path: Path) -> list[Prompt]:
    """Read prompts, one a line: plain text (.txt), or JSON objects (.jsonl) under the keys of ``KEYS``.

    Blank lines are skipped. Other keys of a JSON object are the user's own and are not read.

    Raises:
        UserError: the file can't be read, has no prompt, or has wrong lines; the message names file and line.
    """
    if path.suffix not in (".txt", ".jsonl"):
        raise UserError(f"{path} is neither .txt (one prompt a line) nor .jsonl (one object a line)")
    try:
        # some editors write a byte order mark, which is no part of the first prompt
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}") from None
    prompts: list[Prompt] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode().strip()
            if text:
                prompts.append(Prompt(text=text) if path.suffix == ".txt" else _parse(text))
        except UnicodeDecodeError as error:
            problems.append(f"{path}:{number}: byte {error.start} is not UTF-8")
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        more = [f"and {len(problems) - SHOWN} lines more"] if len(problems) > SHOWN else []
        raise UserError("\n".join([*problems[:SHOWN], *more]))
    if not prompts:
        raise UserError(f"{path} holds no prompt; write one a line")
    return prompts


def _parse(text: str) -> Prompt:
    try:
        record = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("is nested too deeply to be read") from None
    if not isinstance(record, dict):
        raise ValueError(f"holds {type(record).__name__}, not an object like {{'prompt': 'a cat'}}")
    fields = dict(_fields(record))
    if "text" not in fields:
        raise ValueError(f"has no prompt; its keys are {', '.join(map(repr, record)) or 'none'}")
    if not fields["text"].strip():
        raise ValueError("has an empty prompt")
    return Prompt(**fields)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"has {twice!r} twice; keep one")
    return record


def _fields(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
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
            if any("\ud800" <= letter <= "\udfff" for letter in value):
                raise ValueError(f"{found[0]!r} holds half of a surrogate pair, which is no character")
            yield field, value
