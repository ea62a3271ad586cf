"""burnish board: a local page about the runs in a folder."""

from __future__ import annotations

import signal
import socket
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.utils.errors import UserError
from burnish.utils.reading import checked_path
from burnish.utils.serving import punctual

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"  # never another one: the board has no accounts
HEAD = 16 << 10  # bytes of a request's headers
MOST_CONNECTIONS = 64
IDLE, FAREWELL = 30, 2  # seconds that a connection may be idle, and that requests get when the board ends


def board(folder: str, *, port: int) -> int:
    """Serve until a signal ends it.

    Args:
        folder: below which runs are, or one itself.
        port: 0 takes a free one.
    """
    if not 0 <= port < 2**16:
        raise UserError(f"--port is {port}; it must be >= 0 and <= {2**16 - 1}")
    root = checked_path(folder, "FOLDER")
    if not root.is_dir():
        raise UserError(f"FOLDER is {folder}, which is no folder; give the one in which runs are, such as runs")
    with closing(bound(port)) as listening:
        _serve(root, listening)
    return 0


def _serve(root: Path, listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    made = server(root, port)
    print(f"The board of {root} is at http://{HOST}:{port}/; Ctrl-C ends it", flush=True)
    # uvicorn raises the signal that ended it once more, when all requests are answered
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    made.run(sockets=[listening])


def server(root: Path, port: int) -> uvicorn.Server:
    """The server of a board that is reached at a port of this machine."""
    import uvicorn

    from burnish.board import Board

    hosts = frozenset(f"{name}:{port}" if port != 80 else name for name in (HOST, "localhost"))
    return uvicorn.Server(
        uvicorn.Config(
            Board(root.resolve(), hosts).app(),
            http=punctual(IDLE),
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=FAREWELL,
            h11_max_incomplete_event_size=HEAD,
        )
    )


def bound(port: int) -> socket.socket:
    """A socket that listens at a port of this machine, and at no other address."""
    listening = socket.socket(socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise UserError(f"can't listen at {HOST}, port {port}: {error.strerror}; choose another --port") from None
    return listening
