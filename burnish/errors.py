"""What the user can put right, shown as a message and never as a traceback; and the end that a user asks for."""

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


class GivenUp(KeyboardInterrupt):
    """The run is to stop, so what was being sampled or judged is given up. Nobody has learned from it.

    It is no ``Exception``: code of users, such as a reward, must not take it for an error of theirs.
    """
