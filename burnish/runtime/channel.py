"""A broadcast from one process to several, beside whatever process group they train in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


class Channel:
    """Rank 0 sends, all others receive. It is no part of torch's default group, and registers nowhere.

    A member that dies breaks it; the others find out by an error or by the deadline, and open another.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, *, device: str, seconds: float) -> None:
        """Join; returns when all members have.

        Args:
            store: where they find each other; rank 0 keeps it.
            rank: 0 for the sender.
            size: all members.
            device: cpu talks over gloo, cuda over NCCL.
            seconds: that joining, and each broadcast, may take.

        Raises:
            RuntimeError: not all joined in time.
        """
        self.device = torch.device(device)
        limit = timedelta(seconds=seconds)
        store.set_timeout(limit)
        members = dist.PrefixStore("members", store)
        if self.device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            self._group: Any = dist.ProcessGroupNCCL(members, rank, size, options)
        else:
            self._group = dist.ProcessGroupGloo(members, rank, size, limit)

    def broadcast(self, bucket: Tensor) -> None:
        """Send rank 0's bytes into everybody's ``bucket``: uint8, as long everywhere, on the channel's device."""
        self._group.broadcast([bucket], dist.BroadcastOptions()).wait()
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def close(self) -> None:
        """Leave."""
        self._group.shutdown()
