"""Where a run resumes from, and what an interrupted run has lost."""

from __future__ import annotations

import logging

from burnish.checkpoint.files import Checkpoint
from burnish.checkpoint.store import CheckpointStore
from burnish.config import RunConfig
from burnish.config.run_folder import STEP, RunFolder
from burnish.utils.errors import UserError

log = logging.getLogger(__name__)


def starting_point(config: RunConfig, folder: RunFolder, store: CheckpointStore) -> Checkpoint | None:
    """The checkpoint to resume from, by the option ``resume``."""
    if config.resume == "never":
        if folder.has_run():
            raise UserError(
                f"output_dir is {config.output_dir}, which already contains a run, and resume is never; "
                "give another output_dir, or set resume to auto to continue that run"
            )
        return None
    checkpoint = store.latest() if config.resume == "auto" else store.open(config.resume)
    if checkpoint is None:
        if folder.checkpoints.is_dir() and any(path.name.isdecimal() for path in folder.checkpoints.iterdir()):
            raise UserError(
                f"{folder.checkpoints} has checkpoints, but none of them is complete, so the run can't resume; "
                "give another output_dir, or delete them to start anew"
            )
        # without a checkpoint, options may differ from those of the earlier attempt
        return None
    folder.refuse_other_configuration(config)
    log.info("resuming from %s", checkpoint.path)
    return checkpoint


def interrupted(folder: RunFolder) -> str:
    """Message after a second Ctrl-C: which updates were not saved."""
    learned = max((row[STEP] for row in folder.read_metrics()), default=0)
    found = folder.checkpoints.iterdir() if folder.checkpoints.is_dir() else ()
    saved = max((int(path.name) for path in found if path.name.isdecimal()), default=0)
    again = f"the same command resumes after update {saved}" if saved else "the same command starts again"
    if saved >= learned:
        return f"interrupted by a second Ctrl-C; all updates are saved, and {again}"
    lost = f"update {learned}" if saved + 1 == learned else f"updates {saved + 1} to {learned}"
    return f"interrupted by a second Ctrl-C: {lost} not saved; {again}"
