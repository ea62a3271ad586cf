"""burnish serve-reward: rewards for other machines, by HTTP."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Sequence
from contextlib import closing

from burnish.config.serving import ServiceConfig, load_service
from burnish.utils.errors import UserError
from burnish.utils.http import read_token
from burnish.utils.serving import is_loopback, punctual

log = logging.getLogger(__name__)

BACKLOG = 2048  # connections that wait to be accepted
HEAD = 32 << 10  # bytes of a request's headers
IDLE, FAREWELL = 5, 30  # seconds that a connection may be idle, and that requests get when the service ends


def serve_reward(served: Sequence[str], *, host: str, port: int, token_variable: str | None, task: str | None) -> int:
    """Serve until a signal ends it.

    Args:
        served: names of rewards, recipes, and ``option=value``.
        host: address to listen at.
        port: 0 takes a free one, which is printed.
        token_variable: environment variable with the token that clients must send.
        task: whose rewards the names are.
    """
    if not 0 <= port < 2**16:
        raise UserError(f"--port is {port}; it must be >= 0 and <= {2**16 - 1}")
    token = read_token(token_variable, "--token-variable")
    if token is None and not is_loopback(host):
        raise UserError(
            f"--host is {host}, where others can reach the service; set a token in an environment variable and name it "
            "by --token-variable, or listen at 127.0.0.1"
        )
    config = load_service(served, task=task)
    for reward in config.rewards.values():
        reward.check([])
    with closing(_bound(host, port)) as listening:
        _serve(config, listening, token)
    return 0


def _serve(config: ServiceConfig, listening: socket.socket, token: str | None) -> None:
    import uvicorn

    from burnish.rewards.scoring import Scorer
    from burnish.rewards.server import Service

    with Scorer(config.rewards, config.scoring, config.mixing) as scorer:
        service = Service(scorer, config.service, token)
        server = uvicorn.Server(
            uvicorn.Config(
                service.app(),
                http=punctual(IDLE),
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=config.service.max_connections,
                timeout_keep_alive=IDLE,
                timeout_graceful_shutdown=FAREWELL,
                h11_max_incomplete_event_size=HEAD,
            )
        )
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"Serving {', '.join(config.rewards)} at http://{shown}:{port}; Ctrl-C ends it", flush=True)
        # uvicorn raises the signal that ended it once more, when all requests are answered
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        server.run(sockets=[listening])


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)  # from now on clients wait, while the rest is loaded
    except OSError as error:
        listening.close()
        raise UserError(
            f"can't listen at {host}, port {port}: {error.strerror}; choose another --port or --host"
        ) from None
    return listening
