"""Where processes find each other: torch's key-value store, listening on one address instead of on every network."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch import distributed as dist


def open_store(address: str, port: int, seconds: float) -> dist.TCPStore:
    """A store that this process keeps. Only who reaches ``address`` reaches it.

    Left to itself, ``TCPStore`` binds to all interfaces whatever address it is given, so it gets a socket that is
    bound already.

    Args:
        address: of this machine: loopback for a single machine, else the one that the others know it by.
        port: to listen on; 0 takes a free one, which ``store.port`` tells.
        seconds: that anything may take.

    Raises:
        OSError: the address is not this machine's, or the port is taken.
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
    """The store that another process keeps.

    Raises:
        RuntimeError: it does not answer in time.
    """
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=seconds))
