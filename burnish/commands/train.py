"""burnish train: runs the training loop with its hooks, checkpoints and report."""

from __future__ import annotations

import logging
import shlex
from contextlib import ExitStack, closing, nullcontext, suppress

from burnish.checkpoint.files import Checkpoint
from burnish.checkpoint.store import CheckpointStore
from burnish.commands.epochs import with_steps
from burnish.commands.fitting import Fit
from burnish.commands.hooks import RunHooks, Start
from burnish.commands.messages import closing_message, opening_message
from burnish.commands.opening import open_controller
from burnish.commands.resuming import interrupted, starting_point
from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.controller import Controller
from burnish.hooks.expiry import Expiry, ReclaimTime, reclaim_time
from burnish.hooks.failures import NothingLearned
from burnish.hooks.stop import EXIT_STOPPED, StopRequest
from burnish.loop import run
from burnish.report.page import write_report
from burnish.rewards.scoring import RewardsFailing
from burnish.training.profiling import controller_command
from burnish.utils.errors import Cancelled, UserError
from burnish.utils.terminal import progress

log = logging.getLogger(__name__)


def train(config: RunConfig, stop: StopRequest | None = None) -> int:
    """Train, from the start or the last checkpoint.

    Args:
        config: of the run.
        stop: stop request whose signal handlers are installed; None installs them during training.

    Returns:
        0 when all updates are done, 75 when the run was stopped and everything is saved.

    Raises:
        KeyboardInterrupt: on a second Ctrl-C; the message says what was not saved.
    """
    with stop or StopRequest() as asked, closing(RunFolder(config.output_dir)) as folder:
        folder.claim()
        try:
            with asked.cancellable():
                config = with_steps(config)
            finished = _train_in(folder, config, asked)
        except Cancelled:
            finished = False  # before the first update of this process
        except KeyboardInterrupt:
            raise KeyboardInterrupt(interrupted(folder)) from None
        if not folder.has_run():
            print(f"Stopped by {asked.requested} before the first update; the same command starts again")
            return EXIT_STOPPED
        try:
            write_report(folder)
            closing_message(folder, config, "finished" if finished else f"stopped by {asked.requested}")
        except KeyboardInterrupt:
            raise KeyboardInterrupt(interrupted(folder)) from None
        return 0 if finished else EXIT_STOPPED


def _train_in(folder: RunFolder, config: RunConfig, stop: StopRequest) -> bool:
    """Train until all updates are done (True) or a stop was requested (False).

    Raises:
        Cancelled: a stop was requested before the first update of this process.
    """
    expected = reclaim_time(config.trainer)
    with ExitStack() as beside:
        with stop.cancellable():
            store = CheckpointStore(folder.checkpoints, config.checkpoint)
            checkpoint = starting_point(config, folder, store)
            if checkpoint is not None:
                config = folder.with_its_batches(config)
            controller = open_controller(config, store)
            if config.profiler is not None and config.profiler.tool == "nsys":
                command = controller_command(config.profiler, local=config.runtime == "local", folder=folder.profiles)
                log.warning("to profile this process with Nsight Systems, start it with: %s", shlex.join(command))
            fit = beside.enter_context(closing(Fit(config, resumes=checkpoint is not None)))
            with progress("Reading the data"):
                controller.check_data()
        controller.stop_when(lambda: stop.requested is not None)
        beside.enter_context(controller)
        with stop.cancellable():
            config = fit.settle(controller)
            controller.take(config)
            with progress("Loading the model"):
                controller.check()
        while True:
            try:
                return _attempt(config, folder, controller, checkpoint, stop, expected)
            except NothingLearned:
                write_report(folder)
                raise
            except Exception as error:
                if isinstance(error, RewardsFailing) and folder.has_run():
                    write_report(folder)
                controller.recover(error)
                checkpoint = store.latest()


def _attempt(
    config: RunConfig,
    folder: RunFolder,
    controller: Controller,
    checkpoint: Checkpoint | None,
    stop: StopRequest,
    expected: ReclaimTime | None,
) -> bool:
    """Resume from a checkpoint or start, and return whether all updates are done."""
    with stop.cancellable():
        controller.resume(checkpoint)
    start = Start.at(checkpoint, folder)
    try:
        folder.begin(config, resumed_at=start.recorded)
    except UserError as error:
        raise UserError(f"output_dir is {config.output_dir}: {error}") from error
    expiry = Expiry(expected, stop, margin=config.trainer.grace_period, saving=lambda: controller.saving)
    hooks = RunHooks(config, folder, controller, start, expiry, early=expected is not None)

    def stopping() -> bool:
        return expiry.due() or stop.requested is not None

    controller.stop_when(stopping, stop.cancellable)
    opening_message(config, controller.items, done=start.done)
    with closing(hooks):
        with nullcontext() if start.done else stop.cancellable():
            hooks.start()
        if not stopping():
            with suppress(Cancelled):
                run(
                    range(start.done + 1, config.steps + 1), controller.source, controller.workers, hooks.all,
                    observers=[hook.observe for hook in hooks.all], watch=controller.watch, stop=stopping,
                    around=controller.profiler.during, devices=config.devices,
                )  # fmt: skip
        hooks.finish()
    return hooks.done
