"""Regular expressions of tokenizers, which come with models from anywhere: none may take for ever over a text."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from burnish.utils.json_text import parse_json
from burnish.utils.supervisor import ChildDied, LoadFailed, Server

FILE = "tokenizer.json"
MOST = 32  # expressions of a tokenizer
LENGTH = 2000  # characters of the texts that they are tried on
SECONDS = 0.5  # of computing for one of them; those that are published take a hundredth
DEADLINE = 20  # seconds by the clock for all
COMMON = ("a", "A", "1", " ", "\n", "!", "é", "中", "\u0301", " a", "aA", "\n ", "a1", "a!")


def pattern_complaint(folder: Path) -> str:
    """What is wrong with the regular expressions of a folder's tokenizer.json; "" if nothing is, or there is none."""
    file = folder / FILE
    try:
        content = file.read_bytes()
        found = tuple(_expressions(parse_json(content))) if b'"Regex"' in content else ()
    except (OSError, ValueError):  # its reader complains
        return ""
    if not found:
        return ""
    if len(found) > MOST:
        return f"{file} has {len(found)} regular expressions, more than {MOST}; fetch the model again"
    slow = _slow(found)
    return slow and f"{file} {slow}; fetch the model again"


def _expressions(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        for name in ("normalizer", "pre_tokenizer", "decoder"):
            yield from _within(content.get(name))


def _within(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            if name == "Regex" and isinstance(one, str):
                yield one
            else:
                yield from _within(one)
    elif isinstance(value, list):
        for one in value:
            yield from _within(one)


@lru_cache(maxsize=64)
def _slow(expressions: tuple[str, ...]) -> str:
    """Which of them takes too long, tried in a process that can be ended; "" if none does."""
    process = Server(_load, None)
    last = f"has regular expressions that take more than {DEADLINE} s over {LENGTH} characters"
    try:
        process.load(DEADLINE, last)
        return str(process.call(DEADLINE, last, expressions))
    except TimeoutError as error:
        return str(error)
    except (ChildDied, LoadFailed) as error:
        return f"has regular expressions that can't be tried: {error}"
    finally:
        process.close()


# What the process runs


def _load(_: None) -> Callable[[tuple[str, ...]], str]:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)  # Rust tells of a panic there
    return _tried


def _tried(expressions: tuple[str, ...]) -> str:
    from tokenizers import Regex, pre_tokenizers

    for one in expressions:
        try:
            split = pre_tokenizers.Split(Regex(one), "isolated")
        except Exception:  # the tokenizer says so, too
            continue
        for text in _texts(one):
            start = time.process_time()
            try:
                split.pre_tokenize_str(text)
            except BaseException as error:  # a panic of Rust's is no Exception
                return f"has the regular expression {one[:80]!r}, which fails on {text[:10]!r}...: {str(error)[:80]}"
            if (took := time.process_time() - start) > SECONDS:
                return f"has the regular expression {one[:80]!r}, which takes {took:.1f} s over {LENGTH} characters"
    return ""


def _texts(expression: str) -> Iterator[str]:
    """What an expression may have to try again and again: its own characters and words, repeated, and then an end."""
    words = [*COMMON, *dict.fromkeys(expression[:200]), *re.findall(r"\w{2,8}", expression)[:16]]
    ends = ("\x01", "".join(dict.fromkeys(expression[:200])) + "\x01")
    for word in dict.fromkeys(words):
        for end in ends:
            yield word * (LENGTH // len(word)) + end
