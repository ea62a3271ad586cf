"""Bytes that are kept on the disk instead of in memory, in a file without a name that ends with its process."""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import dataclass, field
from typing import IO, Any

from burnish.utils.errors import UserError

IN_MEMORY = 64 << 20  # bytes that a process keeps in memory before it writes further ones to the disk


class Unread:
    """Bytes that lie elsewhere until they are used; pickled, they are bytes."""

    def read(self) -> bytes:
        """They themselves."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        return bytes, (self.read(),)


@dataclass(frozen=True, eq=False)
class Spooled(Unread):
    """Bytes on the disk."""

    file: Spool
    start: int
    length: int

    def read(self) -> bytes:
        return os.pread(self.file.opened().fileno(), self.length, self.start)


@dataclass
class Spool:
    """Takes in bytes, and says where they are."""

    in_memory: int = IN_MEMORY
    _held: int = 0
    _end: int = 0
    _file: IO[bytes] | None = None
    _lock: Any = field(default_factory=threading.Lock)

    def keep(self, data: bytes) -> bytes | Spooled:
        """The bytes, or where they are once many are in memory.

        Raises:
            UserError: they can't be written.
        """
        with self._lock:
            if self._held + len(data) <= self.in_memory:
                self._held += len(data)
                return data
            try:
                written = self.opened().write(data)
                self.opened().flush()
            except OSError as error:
                raise UserError(
                    f"pictures inside of records are kept in a file in {tempfile.gettempdir()}, which can't be "
                    f"written: {error}; free space there, set TMPDIR to another folder, or give the pictures as files"
                ) from None
            start, self._end = self._end, self._end + written
            return Spooled(self, start, written)

    def opened(self) -> IO[bytes]:
        """The file."""
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        return self._file
