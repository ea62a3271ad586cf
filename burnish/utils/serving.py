"""What servers share: connections without a request are closed, so that none holds the place of another client."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any


def is_loopback(host: str) -> bool:
    """Whether a name or an address reaches this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def punctual(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol for HTTP, with a deadline for the head of each request and for what follows an answer.

    uvicorn itself waits for ever for a first request, for the end of a head, and for a body that nobody reads.

    Args:
        seconds: until a connection without a request is closed.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Punctual(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._forget()

        def _watch(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()  # a request is being answered, which has deadlines of its own
            elif self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self.transport.close)

        def _forget(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = None

    return Punctual
