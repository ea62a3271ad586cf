"""burnish train: from a configuration to a finished, resumable, explained run."""

from __future__ import annotations

import logging
import shlex
from contextlib import ExitStack, closing, suppress

from burnish.algorithms.base import Metrics
from burnish.closing import closing_message
from burnish.config import RunConfig
from burnish.crew import Crew, LocalCrew
from burnish.errors import UserError
from burnish.folder import RunFolder
from burnish.hooks.base import Hook
from burnish.hooks.checkpoints import Checkpoints
from burnish.hooks.expiry import Announced, Expiry, announced
from burnish.hooks.failures import Failures, NothingLearned
from burnish.hooks.metrics import MetricsLog
from burnish.hooks.progress import Progress
from burnish.hooks.stop import EXIT_STOPPED, StopRequest
from burnish.hooks.validation import Validation
from burnish.loop import run
from burnish.plan import opening_message
from burnish.profiling import controller_command
from burnish.report import write_report
from burnish.sources.base import GivenUp
from burnish.workers.checkpoint import CheckpointStore
from burnish.workers.checkpoint_files import Checkpoint

log = logging.getLogger(__name__)


def train(config: RunConfig) -> int:
    """Train, from the beginning or from where an earlier attempt stopped.

    Returns:
        0 when all updates are done, 75 when a signal or the machine's announced expiry asked to stop and everything is
        saved.
    """
    with closing(RunFolder(config.output_dir)) as folder:
        folder.claim()
        return _train_in(folder, config)


def _train_in(folder: RunFolder, config: RunConfig) -> int:
    expected = announced(config.trainer)
    store = CheckpointStore(folder.checkpoints, config.checkpoint)
    checkpoint = _starting_point(config, folder, store)
    crew = open_crew(config, store)
    if config.profiler is not None and config.profiler.tool == "nsys":
        command = controller_command(config.profiler, local=config.runtime == "local", folder=folder.profiles)
        log.warning("Nsight Systems sees this process if it was started by: %s", shlex.join(command))
    crew.check_data()
    with crew, StopRequest() as stop:
        crew.stop = lambda: stop.requested is not None
        try:
            crew.check()
        except GivenUp:  # while rewards were tried: nothing is there yet that could be saved
            return EXIT_STOPPED
        while True:
            try:
                finished = _attempt(config, folder, crew, checkpoint, stop, expected)
                break
            except NothingLearned:
                write_report(folder)
                raise
            except Exception as error:
                crew.recover(error)
                checkpoint = store.latest()
    write_report(folder)
    closing_message(folder, config, "finished" if finished else f"stopped by {stop.requested}")
    return 0 if finished else EXIT_STOPPED


def open_crew(config: RunConfig, store: CheckpointStore) -> Crew:
    """Those who do the work, as the option ``runtime`` says.

    Raises:
        UserError: they need something that is not installed.
    """
    if config.runtime == "local":
        return LocalCrew(config, store)
    from burnish.runtime.crew import RayCrew

    return RayCrew(config, store)


def _attempt(
    config: RunConfig,
    folder: RunFolder,
    crew: Crew,
    checkpoint: Checkpoint | None,
    stop: StopRequest,
    expected: Announced | None,
) -> bool:
    """Go on from a checkpoint, or begin: whether all updates are done at the end."""
    crew.resume(checkpoint)
    done = checkpoint.update if checkpoint is not None else 0
    resumed_at = done if checkpoint is not None else None
    try:
        folder.begin(config, resumed_at=resumed_at)
    except UserError as error:
        raise UserError(f"output_dir is {config.output_dir}: {error}") from error
    expiry = Expiry(expected, stop, margin=config.trainer.expiry_margin, saving=lambda: crew.saving)

    def stopping() -> bool:
        return expiry.due() or stop.requested is not None

    hooks: list[Hook] = [
        Validation(config, folder, crew.judge),
        MetricsLog(folder, resumed_at=resumed_at),
        failures := Failures(folder, config.trainer, steps=config.steps),
        checkpoints := Checkpoints(config, crew, early=expected is not None),
        Progress(config, done=done),
        expiry,
    ]
    crew.stop = stopping
    opening_message(config, crew.items, done=done)
    try:
        for hook in hooks:
            hook.start(done)
        if done == 0:
            untrained: Metrics = {}
            for hook in hooks:
                hook(0, untrained)
        with suppress(GivenUp):
            run(range(done + 1, config.steps + 1), failures.watched(crew.source), crew.workers, hooks,
                watch=crew.watch, stop=stopping, around=crew.profiler.during, devices=config.devices)  # fmt: skip
        for hook in hooks:
            hook.finish()
    finally:
        with ExitStack() as ends:  # all of them, whatever the disk says to one
            for hook in reversed(hooks):
                ends.callback(hook.close)
    return max(done, checkpoints.last) >= config.steps


def _starting_point(config: RunConfig, folder: RunFolder, store: CheckpointStore) -> Checkpoint | None:
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
