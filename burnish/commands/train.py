"""burnish train: runs the training loop with its hooks, checkpoints and report."""

from __future__ import annotations

import logging
import shlex
from contextlib import ExitStack, closing, nullcontext, suppress

from burnish.checkpoint.files import Checkpoint
from burnish.checkpoint.store import CheckpointStore
from burnish.commands.epochs import with_steps
from burnish.commands.exporting import ENVIRONMENT
from burnish.commands.fitting import Fit
from burnish.commands.messages import closing_message, opening_message
from burnish.commands.opening import open_controller
from burnish.commands.resuming import interrupted, starting_point
from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.controller import Controller
from burnish.hooks import Hook, Observed
from burnish.hooks.alarms import Alarms, Forms
from burnish.hooks.beside import Beside
from burnish.hooks.checkpoints import BeforeValidation, Checkpoints
from burnish.hooks.epochs import Epochs
from burnish.hooks.expiry import Expiry, ReclaimTime, reclaim_time
from burnish.hooks.failures import Failures, NothingLearned
from burnish.hooks.metrics import MetricsLog
from burnish.hooks.notices import Notices
from burnish.hooks.progress import Progress
from burnish.hooks.recorded import GroupLog, Timeline
from burnish.hooks.report import ReportWriter, SampleIndex
from burnish.hooks.stop import EXIT_STOPPED, StopRequest
from burnish.hooks.trackers import Trackers
from burnish.hooks.validation import Validation
from burnish.loop import run
from burnish.report import write_report
from burnish.rewards.breaker import RewardsFailing
from burnish.training.profiling import controller_command
from burnish.utils.errors import Cancelled, UserError
from burnish.utils.feed import Feed, Timing

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
    notices = Notices(config.trainer.reclaim_notices)
    with ExitStack() as beside:
        with stop.cancellable():
            store = CheckpointStore(folder.checkpoints, config.checkpoint)
            checkpoint = starting_point(config, folder, store)
            controller = open_controller(config, store)
            if config.profiler is not None and config.profiler.tool == "nsys":
                command = controller_command(config.profiler, local=config.runtime == "local", folder=folder.profiles)
                log.warning("to profile this process with Nsight Systems, start it with: %s", shlex.join(command))
            fit = beside.enter_context(closing(Fit(config, resumes=checkpoint is not None)))
            controller.check_data()
        controller.stop_when(lambda: stop.requested is not None)
        beside.enter_context(controller)
        beside.enter_context(notices)
        with stop.cancellable():
            fit.check(controller)
            controller.check()
        while True:
            try:
                return _attempt(config, folder, controller, checkpoint, stop, expected, notices)
            except NothingLearned:
                write_report(folder)
                raise
            except Exception as error:
                if isinstance(error, RewardsFailing) and folder.has_run():
                    write_report(folder)
                controller.recover(error)
                checkpoint = store.latest()


def beside(config: RunConfig, folder: RunFolder) -> list[Hook]:
    """Processes that copy and export every checkpoint, if the options ask for them."""
    options, run = config.checkpoint, str(folder.path.absolute())
    feeds = {}
    if options.copy_to is not None:
        told = {"run": run, "address": options.copy_to, "keep": options.copy_keep, "best": options.keep_best}
        feeds["checkpoint_copy"] = Feed("checkpoint.copy_to", "burnish.checkpoint.copying", told, Timing())
    if options.export is not None:
        told = {"run": run, "what": options.export}
        feeds["checkpoint_export"] = Feed(
            "checkpoint.export", "burnish.commands.exporting", told, Timing(), environment=ENVIRONMENT
        )
    return [Beside(folder, feeds, wait=options.wait)] if feeds else []


def _attempt(
    config: RunConfig,
    folder: RunFolder,
    controller: Controller,
    checkpoint: Checkpoint | None,
    stop: StopRequest,
    expected: ReclaimTime | None,
    notices: Notices,
) -> bool:
    """Resume from a checkpoint or start, and return whether all updates are done."""
    with stop.cancellable():
        controller.resume(checkpoint)
    done = checkpoint.update if checkpoint is not None else 0
    metrics = checkpoint.unvalidated if checkpoint is not None else None
    # the last update is recorded again if its validation is still to be done
    recorded = None if checkpoint is None else done if metrics is None else done - 1
    try:
        folder.begin(config, resumed_at=recorded)
    except UserError as error:
        raise UserError(f"output_dir is {config.output_dir}: {error}") from error
    expiry = Expiry(
        expected, stop, margin=config.trainer.expiry_margin, saving=lambda: controller.saving,
        notice=lambda: notices.found,
    )  # fmt: skip
    validation = Validation(config, folder, controller.evaluate)
    begun = None if checkpoint is None else RunFolder(checkpoint.path.resolve().parent.parent)
    here = checkpoint is not None and checkpoint.path.resolve().parent == folder.checkpoints.resolve()
    checkpoints = Checkpoints(
        config,
        controller,
        validation,
        early=expected is not None or notices.asks,
        unvalidated=done if metrics is not None and here else None,
    )
    forms = Forms(folder, begun)
    watched = [] if config.alarms is None else [forms]
    hooks: list[Hook] = [
        *watched,
        BeforeValidation(checkpoints),
        validation,
        Timeline(folder, controller.watch, controller.assembly.memory, local=config.runtime == "local"),
        Epochs(folder, config, lambda: controller.items),
        GroupLog(folder, lambda: controller.workers.credited),
        *([] if config.alarms is None else [Alarms(config, folder, config.alarms, forms.first)]),
        *beside(config, folder),
        MetricsLog(folder, resumed_at=recorded, names=config.trackers.names),
        Failures(folder, config.trainer, steps=config.steps),
        checkpoints,
        SampleIndex(config, folder),
        ReportWriter(folder),
        Trackers(config, folder, lambda: validation.unfinished, resumed_at=recorded),
        Progress(config, done=done),
        expiry,
    ]

    def stopping() -> bool:
        return expiry.due() or stop.requested is not None

    controller.stop_when(stopping, stop.cancellable)
    opening_message(config, controller.items, done=done)
    try:
        with nullcontext() if done else stop.cancellable():
            for hook in hooks:
                hook.start(done)
            if done == 0 or metrics is not None:
                first = dict(metrics or {})  # shared: hooks add to it for later ones
                for hook in hooks:
                    hook(done, first)
        if not stopping():
            with suppress(Cancelled):
                run(
                    range(done + 1, config.steps + 1), Observed(controller.source, hooks), controller.workers, hooks,
                    watch=controller.watch, stop=stopping, around=controller.profiler.during, devices=config.devices,
                )  # fmt: skip
        for hook in hooks:
            hook.finish()
    finally:
        with ExitStack() as ends:  # all of them, also if one fails
            for hook in reversed(hooks):
                ends.callback(hook.close)
    return max(done, checkpoints.last) >= config.steps and not validation.unfinished
