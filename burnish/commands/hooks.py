"""The hooks of a run, in their order, and where they begin."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from burnish.checkpoint.files import Checkpoint
from burnish.commands.exporting import ENVIRONMENT
from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.controller import Controller
from burnish.hooks import Hook
from burnish.hooks.alarms import Alarms, Forms
from burnish.hooks.beside import Beside
from burnish.hooks.checkpoints import BeforeValidation, Checkpoints
from burnish.hooks.epochs import Epochs
from burnish.hooks.expiry import Expiry
from burnish.hooks.failures import Failures
from burnish.hooks.metrics import MetricsLog
from burnish.hooks.progress import Progress
from burnish.hooks.recorded import GroupLog, Timeline
from burnish.hooks.report import ReportWriter, SampleIndex
from burnish.hooks.trackers import Trackers
from burnish.hooks.validation import Validation
from burnish.rl.algorithm import Metrics
from burnish.utils import terminal
from burnish.utils.feed import Feed, Timing


@dataclass(frozen=True)
class Start:
    """Where a process takes up a run.

    Attributes:
        done: updates that are done.
        unvalidated: metrics of the last of them, if its validation is still to be done.
        begun: folder in which the run was begun, which differs from the run's own for a branch; None for a new run.
        branch: whether it does.
    """

    done: int = 0
    unvalidated: Metrics | None = None
    begun: RunFolder | None = None
    branch: bool = False

    @classmethod
    def at(cls, checkpoint: Checkpoint | None, folder: RunFolder) -> Start:
        """At a checkpoint; None is the beginning."""
        if checkpoint is None:
            return cls()
        saved = checkpoint.path.resolve().parent
        branch = saved != folder.checkpoints.resolve()
        return cls(checkpoint.update, checkpoint.unvalidated, RunFolder(saved.parent), branch)

    @property
    def recorded(self) -> int | None:
        """Last update whose metrics stay; None for a new run. One that lacks its validation is recorded again."""
        if self.begun is None:
            return None
        return self.done if self.unvalidated is None else self.done - 1


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


class RunHooks:
    """What sees every update of a run: validation, checkpoints, the log, trackers, progress.

    Attributes:
        all: in the order in which they are called.
    """

    def __init__(
        self, config: RunConfig, folder: RunFolder, controller: Controller, start: Start, expiry: Expiry, *, early: bool
    ) -> None:
        """Make them; nothing is written before ``start``.

        Args:
            config: of the run.
            folder: of the run.
            controller: that trains.
            start: where this process begins.
            expiry: when the allocation ends.
            early: also save after the first update, to measure how long it takes.
        """
        self._start, self._steps = start, config.steps

        def evaluate(target: Path, guidance: float | None) -> Metrics:
            with terminal.progress("Validation") as controller.assembly.tell:
                return controller.evaluate(target, guidance)

        self._validation = Validation(config, folder, evaluate)
        unvalidated = None if start.unvalidated is None or start.branch else start.done
        self._checkpoints = Checkpoints(config, controller, self._validation, early=early, unvalidated=unvalidated)
        forms = Forms(folder, start.begun)
        self.all: list[Hook] = [
            *([] if config.alarms is None else [forms]),
            BeforeValidation(self._checkpoints),
            self._validation,
            Timeline(folder, controller.watch, controller.assembly.memory, local=config.runtime == "local"),
            Epochs(folder, config, lambda: controller.items),
            GroupLog(folder, lambda: controller.workers.credited),
            *([] if config.alarms is None else [Alarms(config, folder, config.alarms, forms.first)]),
            *beside(config, folder),
            MetricsLog(folder, resumed_at=start.recorded),
            Failures(folder, config.trainer, steps=config.steps),
            self._checkpoints,
            SampleIndex(config, folder),
            ReportWriter(folder),
            Trackers(config, folder, lambda: self._validation.unfinished, resumed_at=start.recorded),
            Progress(config, done=start.done),
            expiry,
        ]

    @property
    def done(self) -> bool:
        """Whether all updates and their validations are done."""
        return max(self._start.done, self._checkpoints.last) >= self._steps and not self._validation.unfinished

    def start(self) -> None:
        """Start all, and validate what the run begins with, if that is due or was left undone."""
        done, metrics = self._start.done, self._start.unvalidated
        for hook in self.all:
            hook.start(done)
        if done == 0 or metrics is not None:
            first = dict(metrics or {})  # shared: hooks add to it for later ones
            for hook in self.all:
                hook(done, first)

    def finish(self) -> None:
        """Finish what the last update began."""
        for hook in self.all:
            hook.finish()

    def close(self) -> None:
        """Close all in reverse order, also if one of them fails."""
        with ExitStack() as ends:
            for hook in reversed(self.all):
                ends.callback(hook.close)
