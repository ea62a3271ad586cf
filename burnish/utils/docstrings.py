"""What docstrings say."""

from __future__ import annotations

import re

ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
SECTIONS = re.compile(r"\n\s*(?:Args|Arguments|Parameters|Returns|Raises):")


def summary(text: str) -> str:
    """What a docstring says before its sections, on one line."""
    return " ".join(SECTIONS.split(f"\n{text}")[0].split())


def arguments(text: str) -> dict[str, str]:
    """What a docstring says of each argument, below "Args:"."""
    _, _, section = f"\n{text}".partition("\nArgs:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line and not line[0].isspace():
            break
        match = ARGUMENT.match(line)
        if match:
            name = match[1]
            found[name] = match[2].strip()
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found
