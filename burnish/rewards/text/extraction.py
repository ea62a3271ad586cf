"""The part of a response that is its answer. Free of options, so that every reward finds the same one."""

from __future__ import annotations

import re
from typing import Literal

Where = Literal["tag", "boxed", "tag_or_boxed", "last_line", "all"]
TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
BOX = r"\boxed{"


def extract(text: str, where: Where) -> str | None:
    r"""The answer in a text, without white space around it; None where there is none.

    Args:
        text: a response, or a reference answer that may be wrapped as responses are.
        where: ``tag`` the first <answer>...</answer>; ``boxed`` the last \boxed{...}; ``tag_or_boxed`` the one that
            is there; ``last_line`` the last line that is not blank; ``all`` everything.
    """
    if where == "tag":
        found = TAG.search(text)
        return found.group(1).strip() if found else None
    if where == "boxed":
        return boxed(text)
    if where == "tag_or_boxed":
        tagged = extract(text, "tag")
        return boxed(text) if tagged is None else tagged
    if where == "last_line":
        lines = text.strip().splitlines()
        return lines[-1].strip() if lines else None
    return text.strip() or None


def boxed(text: str) -> str | None:
    r"""What stands in the last \boxed{...} that is closed, braces inside it included."""
    start = text.rfind(BOX)
    while start >= 0:
        depth = 1
        for position in range(start + len(BOX), len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[start + len(BOX) : position].strip()
        start = text.rfind(BOX, 0, start)
    return None


def reference(answer: str, where: Where) -> str:
    """A right answer, taken out of what it may be wrapped in."""
    inner = extract(answer, where) if where != "last_line" else None
    return answer.strip() if inner is None else inner
