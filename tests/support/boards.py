"""Boards on loopback, and folders of runs to show."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from burnish.commands.board import HOST, board_server
from burnish.config.run_folder import RunFolder
from burnish.utils.http import bound

EVIL = "\"'></title></style></script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\x1b[31m{{7*7}}"
SECONDS = 30.0


@contextmanager
def board(root: Path) -> Iterator[int]:
    """A board of a folder; its port."""
    with closing(bound(HOST, 0)) as listening:
        made = board_server(root, listening.getsockname()[1])
        thread = threading.Thread(target=made.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            made.should_exit = True
            thread.join(SECONDS)


def ask(port: int, path: str, *, method: str = "GET", **headers: str) -> tuple[int, Any, dict[str, str]]:
    """Status, parsed or raw content, and headers of what a board answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    with closing(connection):
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        content = reply.read()
        about = {name.lower(): value for name, value in reply.getheaders()}
    return reply.status, json.loads(content) if about["content-type"] == "application/json" else content, about


def recorded(folder: RunFolder, updates: int) -> None:
    groups, spans = [], []
    for update in range(1, updates + 1):
        one = {"group": 0, "uid": "0a", "prompt": "draw seven", "source": "default", "samples": [0, 1],
               "rewards": [1.0, (0.25, 0.0, 0.5)[update % 3 - 1]], "advantages": [0.7071, -0.7071]}  # fmt: skip
        other = one | {"group": 1, "uid": "0b", "prompt": "draw one", "rewards": [0.5 + 1e-8 * update, None]}
        groups.append({"update": update, "groups": [one, other]})
        lanes = {f"train {rank}": [["gen", 0.0, 0.5 + rank], ["update_actor", 1.6, 0.4]] for rank in range(2)}
        spans.append({"update": update, "lanes": lanes})
    folder.groups.write_text("".join(json.dumps(line) + "\n" for line in groups))
    folder.timeline.write_text("".join(json.dumps(line) + "\n" for line in spans))
