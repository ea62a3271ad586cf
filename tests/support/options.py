"""Options of configurations by their dotted names."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

from burnish.config.text import fields

# sections that bring their own classes, and are tested with them
BROUGHT = ("algorithm", "rewards", "environment")


def options_of(kind: Any, prefix: str = "") -> dict[str, tuple[type, str]]:
    """Dotted names of all options of the sections, with the class and the field that each is."""
    found: dict[str, tuple[type, str]] = {}
    hints = get_type_hints(kind)
    for name in fields(kind):
        inner = [one for one in (hints[name], *get_args(hints[name])) if dataclasses.is_dataclass(one)]
        if not prefix and name in BROUGHT:
            found[name] = (kind, name)
        elif inner:
            found |= options_of(inner[0], f"{prefix}{name}.")
        else:
            found[prefix + name] = (kind, name)
    return found
