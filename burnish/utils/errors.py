"""What the user can put right, shown as a message and never as a traceback; and the end that a user asks for."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(ValueError):
    """Something that the user asked for can't be done; the message names it, its value and the way out."""


class ConfigError(UserError):
    """Several things that are wrong, with a configuration or with a file, one complaint a line."""

    def __init__(self, complaints: str | Iterable[str], *, count: int | None = None, way_out: str = "") -> None:
        """Give what is wrong, a line each.

        Args:
            complaints: what is wrong.
            count: how many things are wrong, where not all of them are among the complaints.
            way_out: what to do about all of them, which whoever shows them adds.
        """
        lines = [complaints] if isinstance(complaints, str) else list(dict.fromkeys(complaints))
        self.complaints, self.count, self.way_out = lines, count or len(lines), way_out
        more = self.count - len(lines)
        super().__init__("\n".join([*lines, *([f"and {more} more"] if more else [])]))


def out_of_memory(error: Exception) -> bool:
    """Whether Python, or torch on a CPU or a GPU, found no memory for what was asked for."""
    torchs = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or torchs


class Cancelled(KeyboardInterrupt):
    """The run is to stop, so what was being sampled or judged is given up. Nobody has learned from it.

    It is no ``Exception``: code of users, such as a reward, must not take it for an error of theirs.
    """
