"""What can go wrong with workers: they die, or they are late. Errors of their own code come back as they are."""

from __future__ import annotations

from burnish.utils.errors import UserError


class WorkerDied(RuntimeError):
    """A worker's process is gone, and with it what it held; it can be started again."""

    def __init__(self, pool: str, rank: int, reason: str) -> None:
        super().__init__(f"worker {rank} of pool {pool} died: {reason}")
        self.pool, self.rank, self.reason = pool, rank, reason

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.pool, self.rank, self.reason)


class WorkerTimeout(UserError):
    """A worker did not answer in time."""


class Unschedulable(UserError):
    """The cluster can't hold the pools."""


class RestartLimit(UserError):
    """Workers died too often."""
