"""Rendezvous of processes: torch's key-value store, listening on one address instead of all interfaces."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch import distributed as dist


def open_store(address: str, port: int, seconds: float) -> dist.TCPStore:
    """A store of this process that listens on ``address`` alone.

    ``TCPStore`` binds to all interfaces whatever its address is, so it gets a socket that is already bound.

    Args:
        address: of this machine: loopback for a single machine, else the one that the others connect to.
        port: to listen on; 0 takes a free one, see ``store.port``.
        seconds: timeout of the store.

    Raises:
        OSError: the address is not this machine's, or the port is in use.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError:
        listener.close()
        raise
    return dist.TCPStore(
        address,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=seconds),
        master_listen_fd=listener.detach(),  # torch closes it
    )


def reach_store(address: str, port: int, seconds: float) -> dist.TCPStore:
    """The store of another process.

    Raises:
        RuntimeError: timeout.
    """
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=seconds))
