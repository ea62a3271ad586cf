"""Where a run goes on from, and what a run that was stopped at once has lost."""

from __future__ import annotations

import logging

from burnish.checkpoint.files import Checkpoint
from burnish.checkpoint.store import CheckpointStore
from burnish.config import RunConfig
from burnish.config.run_folder import STEP, RunFolder
from burnish.utils.errors import UserError

log = logging.getLogger(__name__)


def starting_point(config: RunConfig, folder: RunFolder, store: CheckpointStore) -> Checkpoint | None:
    """The checkpoint to go on from, by the option ``resume``."""
    if config.resume == "never":
        if folder.has_run():
            raise UserError(
                f"output_dir is {config.output_dir}, which holds a run already, and resume is never; "
                "choose another output_dir, or resume=auto to go on with it"
            )
        return None
    checkpoint = store.latest() if config.resume == "auto" else store.open(config.resume)
    if checkpoint is None:
        if folder.checkpoints.is_dir() and any(path.name.isdecimal() for path in folder.checkpoints.iterdir()):
            raise UserError(
                f"{folder.checkpoints} holds checkpoints, but none of them is whole, so the run can't go on; "
                "give another output_dir, or delete them to begin anew"
            )
        # an attempt that ended before it saved anything has nothing that other options could spoil
        return None
    folder.refuse_other_configuration(config)
    log.info("going on from %s", checkpoint.path)
    return checkpoint


def interrupted(folder: RunFolder) -> str:
    """What a second Ctrl-C has cost."""
    learned = max((row[STEP] for row in folder.read_metrics()), default=0)
    found = folder.checkpoints.iterdir() if folder.checkpoints.is_dir() else ()
    saved = max((int(path.name) for path in found if path.name.isdecimal()), default=0)
    again = f"the same command goes on after update {saved}" if saved else "the same command begins again"
    if saved >= learned:
        return f"stopped at once by a second Ctrl-C; everything that was learned is saved, and {again}"
    lost = f"update {learned}" if saved + 1 == learned else f"updates {saved + 1} to {learned}"
    return f"stopped at once by a second Ctrl-C: {lost} not saved; {again}"
