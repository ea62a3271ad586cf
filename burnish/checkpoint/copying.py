"""The process that copies a run's checkpoints to an address."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from burnish.checkpoint import manifest
from burnish.checkpoint.manifest import numbered
from burnish.checkpoint.remote import Remote
from burnish.utils import feed_process
from burnish.utils.errors import UserError
from burnish.utils.feed_process import Orders
from burnish.utils.paths import CHECKPOINTS
from burnish.utils.secrets import redacted

OFTEN = 1.0  # seconds between two messages that work goes on


def serve(end: socket.socket, lines: IO[str], parent: int) -> None:
    """The process; see ``burnish.utils.feed_process``."""
    feed_process.serve(end, lines, parent, copy)


def copy(told: dict[str, Any], orders: Orders, say: Callable[..., None]) -> None:
    """Copy every checkpoint that appears, the newest first, until the run ends.

    Args:
        told: ``run``, its folder; ``address``; how many copies to ``keep``, if not all, and whether the ``best``, too.
        orders: of the run.
        say: what is to be logged.
    """
    done, said = -1, 0.0

    def alive() -> None:
        nonlocal said
        if time.monotonic() - said > OFTEN:
            said = time.monotonic()
            say(step=done)

    run, remote = Path(told["run"]), Remote(told["address"], alive)
    there = remote.updates()  # whoever can't list it learns that now
    say(opened=redacted(f"copies go to {told['address']}, which has {len(there)}"), step=done)
    copied: dict[int, bytes] = {}  # manifests, which change when a validation is recorded
    while True:
        orders.changed.clear()
        ended = orders.outcome is not None
        while (folder := _pending(run / CHECKPOINTS, copied, told["keep"], best=told["best"])) is not None:
            update, known = int(folder.name), _manifest(folder)
            if known is None:
                continue
            try:
                remote.copy(folder)
                copied[update] = known
            except (FileNotFoundError, UserError) as error:
                if not folder.is_dir():
                    gone = f"{folder} was removed before it was copied; raise checkpoint.keep_last to copy every one"
                    say(warning=gone)
                elif isinstance(error, UserError):  # damaged on this machine, which no second try changes
                    copied[update] = known
                    say(warning=redacted(str(error)))
                else:
                    raise
                continue
            remote.copy_records(run)
            done = max(done, update)
            if told["keep"] is not None:
                remote.retire(told["keep"], best=told["best"], update=done)
            say(step=done)
        if ended:
            return
        orders.changed.wait()


def _pending(checkpoints: Path, copied: Mapping[int, bytes], keep: int | None, *, best: bool) -> Path | None:
    """The newest checkpoint that is not copied as it is, of those that are to be kept there."""
    newest = sorted(numbered(checkpoints), reverse=True)
    manifests = {path: raw for path in newest if (raw := _manifest(path)) is not None}
    wanted = list(manifests)[:keep]
    if best and keep is not None:
        scores = [(score, path) for path, raw in manifests.items() if (score := _score(raw)) is not None]
        wanted += [max(scores)[1]] if scores else []
    return next((path for path in wanted if copied.get(int(path.name)) != manifests[path]), None)


def _manifest(checkpoint: Path) -> bytes | None:
    try:
        return (checkpoint / manifest.NAME).read_bytes()
    except FileNotFoundError:  # it is being removed, or was never complete
        return None


def _score(raw: bytes) -> float | None:
    try:
        score: float | None = manifest.parse(raw, manifest.NAME)["score"]
    except UserError:
        return None
    return score
