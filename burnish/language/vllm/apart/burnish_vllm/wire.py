"""Messages between two processes: a JSON header, and arrays as raw bytes."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


class Channel:
    """One end of a connection. A closed one raises EOFError or an OSError."""

    def __init__(self, end: socket.socket) -> None:
        self._end = Connection(end.detach())
        self.fileno, self.close = self._end.fileno, self._end.close
        self.request = 0  # number of the request that messages belong to: an answer has that of what was received last

    def send(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Send a message; ``header`` is anything that JSON can say."""
        flat = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        shapes = {name: [array.dtype.str, array.shape] for name, array in flat.items()}
        self._end.send_bytes(json.dumps({"request": self.request, "header": header, "arrays": shapes}).encode())
        for array in flat.values():
            self._end.send_bytes(array.reshape(-1).view(np.uint8).data)

    def receive(self) -> tuple[dict[str, Any], Arrays]:
        """The next message."""
        message = json.loads(self._end.recv_bytes())
        self.request = message["request"]
        arrays = {
            name: np.frombuffer(bytearray(self._end.recv_bytes()), dtype=np.dtype(kind)).reshape(shape)
            for name, (kind, shape) in message["arrays"].items()
        }
        return message["header"], arrays
