"""Going on from an address: the newest checkpoint there is fetched into the folder of the run."""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from burnish.checkpoint.files import VISIBLE, numbered, read
from burnish.checkpoint.remote import Damaged, Remote
from burnish.config.run import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.utils.addresses import address_complaint, is_address, library_complaint
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.paths import CHECKPOINTS
from burnish.utils.secrets import redacted

log = logging.getLogger(__name__)


def fetched(config: RunConfig) -> RunConfig:
    """The run as it goes on here, if ``resume`` is an address; unchanged otherwise.

    The address is that of a run's copies (``checkpoint.copy_to``): the newest is fetched, unless this machine has one
    that is as new. Or that of one of its checkpoints.

    Raises:
        UserError: nothing can be fetched; before anything is loaded.
    """
    if not is_address(config.resume):
        return config
    if complaint := address_complaint(config.resume) or library_complaint(config.resume):
        raise UserError(f"resume is {config.resume}, {complaint}")
    address, wanted = _parted(config.resume)
    try:
        remote = Remote(address)
        there = [update for update in remote.updates() if wanted in (None, update)]
        with closing(RunFolder(config.output_dir)) as folder:
            if (
                not there
                and not folder.checkpoints.is_dir()
                and address == (config.checkpoint.copy_to or "").rstrip("/")
            ):
                log.info("%s has no checkpoint yet: the run begins", address)
                return replace(config, resume="auto")
            found = _fetch(remote, there, wanted, folder) if there or folder.checkpoints.is_dir() else None
    except UserError:
        raise
    except Exception as error:  # whatever a file system raises
        why = redacted(" ".join(f"{type(error).__name__}: {error}".split()))[:500]
        raise UserError(f"resume is {config.resume}, which can't be read: {why}") from error
    if found is None:
        raise UserError(f"resume is {config.resume}, which has no complete checkpoint")
    return replace(config, resume="auto" if wanted is None else str(found))


def _fetch(remote: Remote, there: list[int], wanted: int | None, folder: RunFolder) -> Path | None:
    with writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    folder.claim()
    with writing(folder.path):
        folder.checkpoints.mkdir(exist_ok=True)
    found = _newest(remote, there, wanted, folder.checkpoints)
    if found is not None:
        remote.fetch_records(folder.path)
    return found


def _parted(address: str) -> tuple[str, int | None]:
    """A run's address, and which of its checkpoints is meant."""
    head, _, name = address.rstrip("/").rpartition("/")
    if VISIBLE.fullmatch(name) and head.endswith(f"/{CHECKPOINTS}"):
        return head.removesuffix(f"/{CHECKPOINTS}"), int(name)
    return address.rstrip("/"), None


def _newest(remote: Remote, there: list[int], wanted: int | None, checkpoints: Path) -> Path | None:
    """The newest undamaged checkpoint of here and there, fetched if it is not here."""
    visible = {int(path.name): path for path in numbered(checkpoints)}
    here = {update: path for update, path in visible.items() if wanted in (None, update)}
    for update in sorted({*there, *here}, reverse=True):
        if update in here:
            with suppress(UserError):
                return read(here[update]).path
        if update in there:
            log.info("fetching checkpoint %d from %s", update, remote.root)
            try:
                return remote.fetch(update, checkpoints)
            except Damaged as error:
                log.warning("checkpoint skipped: %s", error)
    return None
