"""burnish board: a local page about runs. burnish serve-reward: rewards for other machines, by HTTP."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from burnish.utils.errors import UserError
from burnish.utils.http import is_loopback, punctual
from burnish.utils.reading import checked_path

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"  # of the board, never another one: it has no accounts
BACKLOG = 2048  # connections that wait to be accepted
HEAD = 32 << 10  # bytes of a request's headers


def board(folder: str = "runs", *, port: Annotated[int, 0, 65535] = 8010) -> int:
    """Show the runs in a folder on a local page.

    Examples:
        burnish board
        burnish board runs --port 0

    Args:
        folder: where runs are, or one of them
        port: of this machine; 0 takes a free one
    """
    root = checked_path(folder, "FOLDER")
    if not root.is_dir():
        raise UserError(f"FOLDER is {folder}, which is no folder; give the one in which runs are, such as runs")
    with closing(bound(HOST, port)) as listening:
        port = listening.getsockname()[1]
        print(f"The board of {root} is at http://{HOST}:{port}/; Ctrl-C ends it", flush=True)
        _serve(board_server(root, port), listening)
    return 0


def board_server(root: Path, port: int) -> uvicorn.Server:
    """The server of a board that is reached at a port of this machine."""
    from burnish.board import Board

    hosts = frozenset(f"{name}:{port}" if port != 80 else name for name in (HOST, "localhost"))
    return _server(Board(root.resolve(), hosts).app(), connections=64, idle=30, farewell=2)


def serve_reward(
    served: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, 0, 65535] = 8000,
    token_variable: str | None = None,
    task: str | None = None,
) -> int:
    """Serve rewards to other machines.

    A run asks it by the reward remote: rewards.remote.url=http://127.0.0.1:8000

    Examples:
        burnish serve-reward ocr --port 8000
        burnish serve-reward pickscore pickscore.device=cuda --port 8000
        burnish serve-reward numeric format format.weight=0.1                   their weighted sum
        burnish serve-reward my_recipe.yaml --host 10.0.0.5 --token-variable REWARD_TOKEN

    Args:
        served (NAME|RECIPE|OPTION=VALUE): rewards by name, or a .yaml file with rewards, and options such as
            ocr.weight=1 or service.queue=100
        host: address to listen at
        port: 0 takes a free one
        token_variable (NAME): environment variable with the token clients must send
        task: whose rewards the names are, where both tasks have some of that name
    """
    from burnish.config.serving import load_service
    from burnish.rewards.scoring import Scorer
    from burnish.rewards.server import Service
    from burnish.utils.http import read_token

    token = read_token(token_variable, "--token-variable")
    if token is None and not is_loopback(host):
        raise UserError(
            f"--host is {host}, where others can reach the service; set a token in an environment variable and name it "
            "by --token-variable, or listen at 127.0.0.1"
        )
    config = load_service(served, task=task)
    for reward in config.rewards.values():
        reward.check([])
    with closing(bound(host, port)) as listening, Scorer(config.rewards, config.scoring, config.mixing) as scorer:
        app = Service(scorer, config.service, token).app()
        server = _server(app, connections=config.service.max_connections, idle=5, farewell=30)
        address = f"[{host}]" if ":" in host else host
        print(
            f"Serving {', '.join(config.rewards)} at http://{address}:{listening.getsockname()[1]}; Ctrl-C ends it",
            flush=True,
        )
        _serve(server, listening)
    return 0


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at an address: from now on clients wait, while the rest is loaded."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise UserError(f"can't listen at {host}, port {port}: {error.strerror}; choose another --port") from None
    return listening


def _server(app: Any, *, connections: int, idle: int, farewell: int) -> uvicorn.Server:
    """A server.

    Args:
        app: that answers.
        connections: at most.
        idle: seconds that one may be.
        farewell: seconds that requests get when the server ends.
    """
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=punctual(idle),
            ws="none",
            lifespan="auto",
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=connections,
            timeout_keep_alive=idle,
            timeout_graceful_shutdown=farewell,
            h11_max_incomplete_event_size=HEAD,
        )
    )


def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    # uvicorn raises the signal that ended it once more, when all requests are answered
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    server.run(sockets=[listening])
