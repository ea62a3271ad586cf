"""What can go wrong with workers: they die, their devices fail, or they are late. Errors of their own code come back as
they are."""

from __future__ import annotations

import re

from burnish.utils.errors import UserError

TYPES = ("AcceleratorError", "DistBackendError")  # of PyTorch: what CUDA or NCCL say
DEVICE = re.compile(
    r"(?:CUDA|HIP|NCCL|RCCL) (?:driver )?error|uncorrectable ECC|unspecified launch failure"
    r"|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError"
    r"|(?:CUBLAS|CUDNN|CUSOLVER)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)"
)
MEMORY = ("OutOfMemoryError", "out of memory")  # the same again after a restart


class WorkerDied(RuntimeError):
    """A worker's process is gone, and with it what it held; it can be started again."""

    def __init__(self, pool: str, rank: int, reason: str) -> None:
        super().__init__(f"worker {rank} of pool {pool} died: {reason}")
        self.pool, self.rank, self.reason = pool, rank, reason

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.pool, self.rank, self.reason)


class WorkerTimeout(UserError):
    """A worker did not answer in time."""

    def __init__(self, message: str, pool: str = "") -> None:
        """Args: ``pool`` of the worker, if another process might do better: not where it was too slow to start."""
        super().__init__(message)
        self.pool = pool


class Unschedulable(UserError):
    """The cluster can't hold the pools."""


class RestartLimit(UserError):
    """Workers died too often."""


def device_failure(error: BaseException) -> str:
    """What a device or the connection between devices said, after which a process can't use it; "" for other errors.

    Running out of memory is none: it would happen again.
    """
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, UserError) or any(word in text for word in MEMORY):
        return ""
    if type(error).__name__ not in TYPES and not DEVICE.search(str(error)):
        return ""
    return " ".join(text.split())[:300].rstrip(". ")
