"""A broadcast from one process to several, beside whatever process group they train in."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from burnish.training.rendezvous import reach_store
from burnish.utils.json_text import parse_json


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
            seconds: that joining, and each message, may take.

        Raises:
            RuntimeError: not all joined in time.
        """
        self.rank, self.size, self.device = rank, size, torch.device(device)
        self._store = store
        self._messages = 0
        limit = timedelta(seconds=seconds)
        store.set_timeout(limit)
        members = dist.PrefixStore("members", store)
        if self.device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            self._group: Any = dist.ProcessGroupNCCL(members, rank, size, options)
        else:
            self._group = dist.ProcessGroupGloo(members, rank, size, limit)

    @classmethod
    def join(cls, address: str, port: int, rank: int, size: int, *, device: str, seconds: float) -> Channel:
        """Join the others at the store that rank 0 has opened."""
        return cls(reach_store(address, port, seconds), rank, size, device=device, seconds=seconds)

    def send(self, message: Any) -> None:
        """Send every receiver a small message: anything that JSON can say."""
        self._store.set(f"message {self._messages}", json.dumps(message))
        self._messages += 1

    def receive(self) -> Any:
        """The sender's next message.

        Whoever reaches the store can write one, so it is data and nothing more. The store takes none above 8 MiB.

        Raises:
            ValueError: it is no JSON.
            RuntimeError: none comes in time.
        """
        content = self._store.get(f"message {self._messages}")
        self._messages += 1
        return parse_json(content)

    def broadcast(self, bucket: Tensor) -> None:
        """Send rank 0's bytes into everybody's ``bucket``: uint8, as long everywhere, on the channel's device."""
        self._group.broadcast([bucket], dist.BroadcastOptions()).wait()
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def close(self) -> None:
        """Leave."""
        self._group.shutdown()
