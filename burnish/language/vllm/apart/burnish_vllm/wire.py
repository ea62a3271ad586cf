"""Messages between two processes: a JSON header and arrays as raw bytes, each with its length before it."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

LENGTH = struct.Struct("!Q")
PIECE = 1 << 22
Arrays = dict[str, np.ndarray]


class Channel:
    """One end of a connection. A closed one raises EOFError or an OSError."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.request = 0  # number of the request that messages belong to: an answer has that of what was received last

    def send(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Send a message; ``header`` is anything that JSON can say."""
        flat = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        shapes = {name: [array.dtype.str, array.shape] for name, array in flat.items()}
        text = json.dumps({"request": self.request, "header": header, "arrays": shapes}).encode()
        self._end.sendall(LENGTH.pack(len(text)) + text)
        for array in flat.values():
            if array.size:
                self._end.sendall(array.reshape(-1).view(np.uint8).data)

    def receive(self) -> tuple[dict[str, Any], Arrays]:
        """The next message."""
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        message = json.loads(self._read(length).decode())
        self.request = message["request"]
        arrays: Arrays = {}
        for name, (kind, shape) in message["arrays"].items():
            dtype = np.dtype(kind)
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(self._read(count * dtype.itemsize), dtype=dtype).reshape(shape)
        return message["header"], arrays

    def fileno(self) -> int:
        """What to wait on until a message arrives, or the other end is gone."""
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        view, start = memoryview(data), 0
        while start < count:
            got = self._end.recv_into(view[start : start + PIECE])
            if not got:
                raise EOFError("the other end has closed the connection")
            start += got
        return data
