"""Errors that are shown as a message, without a traceback."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class UserError(ValueError):
    """An error that the user can fix; the message names the option or record, its value, and what to do."""


class ConfigError(UserError):
    """Several problems of a configuration or file, one per line."""

    def __init__(self, complaints: str | Iterable[str], *, count: int | None = None, way_out: str = "") -> None:
        """Collect them.

        Args:
            complaints: one message per problem.
            count: number of problems, if ``complaints`` has not all of them.
            way_out: what to do about all of them.
        """
        lines = [complaints] if isinstance(complaints, str) else list(dict.fromkeys(complaints))
        self.complaints, self.count, self.way_out = lines, count or len(lines), way_out
        more = self.count - len(lines)
        super().__init__("\n".join([*lines, *([f"and {more} more"] if more else [])]))


def first_line(error: BaseException, otherwise: str = "") -> str:
    """The first line of what a library's error says, with the next where it ends in a colon; ``otherwise``, or its
    type, where it says nothing."""
    first, *more = map(str.strip, (str(error).strip() or otherwise or type(error).__name__).splitlines())
    return " ".join([first, *more[:1]]) if first.endswith(":") else first


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def meant(names: Sequence[str]) -> str:
    """A question whether one of these was meant, for the middle of a message; "" without any."""
    return f"did you mean {' or '.join(names)}? " if names else ""


def out_of_memory(error: Exception) -> bool:
    """Whether Python, or torch on CPU or GPU, ran out of memory."""
    of_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or of_torch


class Cancelled(KeyboardInterrupt):
    """The run stops, so sampling or evaluation was cancelled; nothing was trained on its samples.

    No ``Exception``, so that users' code, such as a reward, does not catch it as an error.
    """
