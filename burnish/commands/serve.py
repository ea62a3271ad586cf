"""burnish board: a local page about runs. burnish serve-reward: rewards for other machines, by HTTP."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from burnish.config.errors import wrong_choice
from burnish.config.load import checked, find_recipe, labelled, read_recipe
from burnish.config.names import Context
from burnish.config.plugins import open_plugins, with_whole_paths
from burnish.config.tasks import DEFAULT, TASKS, task_named
from burnish.config.yaml_text import merge, nest, read_overrides
from burnish.options import ScoringOptions, ServiceOptions
from burnish.registry import Choice, fields, known, names, options
from burnish.rewards.mixing import MixingOptions
from burnish.utils.errors import ConfigError, UserError
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
        burnish serve-reward my_recipe.yaml --host 10.0.0.5 --token-variable TOKEN

    Args:
        served (NAME|RECIPE|OPTION=VALUE): rewards by name, or a .yaml file with rewards, and options such as
            ocr.weight=1 or service.queue=100
        host: address to listen at
        port: 0 takes a free one
        token_variable (NAME): environment variable with the token clients must send
        task: whose rewards the names are, where both tasks have some of that name
    """
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


@options
class ServiceConfig:
    """What is served, and how."""

    task: str
    """Whose rewards they are."""
    plugins: list[str] = Field(default_factory=list)
    """Code of yours, as in a recipe."""
    rewards: dict[str, Any]
    """What is served, by label."""
    scoring: ScoringOptions = Field(default_factory=ScoringOptions)
    """How rewards are computed."""
    mixing: MixingOptions = Field(default_factory=MixingOptions)
    """How several of them become one."""
    service: ServiceOptions = Field(default_factory=ServiceOptions)
    """What the service takes at once."""


SECTIONS = tuple(fields(ServiceConfig))  # of a recipe, that a service reads


def load_service(served: Sequence[str], *, task: str | None = None) -> ServiceConfig:
    """Read what a service is asked to serve.

    Args:
        served: names of rewards, recipes (names, or paths of .yaml files), and ``option=value``.
        task: whose rewards the names are; None takes a recipe's, or the one that knows the names.

    Raises:
        ConfigError: with all problems.
    """
    given = {
        option if option.partition(".")[0] in SECTIONS else f"rewards.{option}": value
        for option, value in read_overrides([one for one in served if "=" in one]).items()
    }
    tree: dict[str, Any] = {}
    labels = []
    for one in [one for one in served if "=" not in one]:
        if one.endswith((".yaml", ".yml")) or (not _kinds(one) and "/" in one):
            content = read_recipe(find_recipe(one))
            tree = merge(tree, {name: value for name, value in content.items() if name in SECTIONS})
        else:
            labels.append(one)
    tree = merge(merge(tree, {"rewards": {label: {} for label in labels}}), with_whole_paths(nest(given)))
    open_plugins(tree.get("plugins", []))
    name = task or tree.get("task") or _task_of(labels)
    # a service goes on: its clients decide
    tree = labelled(tree) | {"task": name, "scoring": {"max_failures": None} | dict(tree.get("scoring") or {})}
    config = task_named(name).config
    context = Context([(Path(served[0]).name if served else "", tree)], given, tree, config)
    rewards = checked(dict[str, Annotated[Any, Choice(config.reward_kind)]], tree["rewards"], context, "rewards")
    found: ServiceConfig = checked(ServiceConfig, tree | {"rewards": {}}, context)
    found.rewards = rewards
    if complaints := list(_problems(found)):
        raise ConfigError(complaints)
    return found


def _problems(config: ServiceConfig) -> Iterator[str]:
    for label, reward in config.rewards.items():
        if reward.on_failure != "missing":
            yield (
                f"rewards.{label}.on_failure is {reward.on_failure}, which is for the run to decide that asks; leave "
                "it out, and set it for that run's reward remote"
            )
        if asked := reward.required_fields():
            yield f"rewards.{label} asks for {', '.join(asked)}, which clients don't send; leave it out"
    if not any(reward.counts for reward in config.rewards.values()):
        yield "no reward with a weight is given; name one, as in: burnish serve-reward ocr"
    if config.scoring.max_failures is not None:
        yield "scoring.max_failures ends a run, not a service; leave it out"


def _kinds(name: str) -> list[str]:
    """The tasks that know a reward of this name."""
    return [task for task, one in TASKS.items() if known(one.config.reward_kind, name)]


def _task_of(labels: Sequence[str]) -> str:
    """The one task whose rewards all of these are."""
    every = [name for task in TASKS.values() for name in names(task.config.reward_kind)]
    for label in labels:
        if not _kinds(label):
            raise ConfigError(wrong_choice(f"reward {label!r:.60}", label, sorted(set(every)), short=True))
    shared = [task for task in TASKS if all(task in _kinds(label) for label in labels)]
    if labels and not shared:
        raise ConfigError(f"{' and '.join(labels)} are rewards of different tasks; serve them one by one")
    if labels and len(shared) > 1:
        raise ConfigError(f"{' and '.join(labels)}: say of which task, by --task {' or --task '.join(shared)}")
    return shared[0] if labels else DEFAULT
