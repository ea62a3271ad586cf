"""The one class of error that the user can put right: shown as a message, never as a traceback."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(ValueError):
    """Something that the user asked for can't be done; the message names it, its value and the way out."""


class ConfigError(UserError):
    """What is wrong with a configuration, one complaint a line."""

    def __init__(self, complaints: str | Iterable[str]) -> None:
        lines = [complaints] if isinstance(complaints, str) else list(dict.fromkeys(complaints))
        super().__init__("\n".join(lines))
        self.complaints = lines
