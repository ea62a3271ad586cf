"""burnish train: the training loop with its hooks, checkpoints and report, and what it says first and last."""

from __future__ import annotations

import gc
import logging
import math
import shlex
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from burnish.alarms.actions import Action, at_checkpoint, carry_out, changed, read_actions
from burnish.checkpoint.files import Checkpoint, damage, numbered, read
from burnish.checkpoint.store import CheckpointStore
from burnish.commands.export import Exports
from burnish.commands.fitting import Fit
from burnish.config import RunConfig
from burnish.config.run_folder import STEP, RunFolder
from burnish.controller import Controller
from burnish.hooks import (
    EXIT_STOPPED,
    Expiry,
    Hook,
    ReclaimTime,
    StopRequest,
    reclaim_time,
    registered_hooks,
)
from burnish.hooks.alarms import Alarms, FirstUpdates
from burnish.hooks.beside import Beside, Copies, Follower
from burnish.hooks.checkpoints import Checkpoints, Validation
from burnish.hooks.log import (
    Epochs,
    Failures,
    GroupLog,
    MetricsLog,
    NothingLearned,
    Progress,
    ReportWriter,
    SampleIndex,
    Timeline,
)
from burnish.hooks.trackers import Trackers
from burnish.loop import run
from burnish.report.overview import numbers
from burnish.report.page import write_report
from burnish.report.summary import Summary, next_steps
from burnish.report.verdict import headline, verdict
from burnish.rewards.scoring import RewardsFailing
from burnish.rl.algorithm import Metrics
from burnish.tasks import assemble
from burnish.training.profiling import controller_command
from burnish.utils import terminal
from burnish.utils.errors import Cancelled, UserError
from burnish.utils.paths import holds_run

log = logging.getLogger(__name__)


def train(config: RunConfig, stop: StopRequest | None = None) -> int:
    """Train, from the start or the last checkpoint.

    Args:
        config: of the run.
        stop: whose signal handlers are installed; None installs those of one of its own.

    Returns:
        0 when all updates are done, 75 when the run was stopped and everything is saved.

    Raises:
        KeyboardInterrupt: on a second Ctrl-C; the message says what was not saved.
    """
    with nullcontext(stop) if stop else StopRequest() as asked, closing(RunFolder(config.output_dir)) as folder:
        folder.claim()
        try:
            finished = False
            with suppress(Cancelled):  # before the first update of this process
                with asked.cancellable():
                    config = with_steps(config)
                start = config.resume
                while not (finished := _train_in(folder, config, start, asked)) and asked.requested is None:
                    gc.collect()  # the networks of before, or there would be two of each
                    start = str(folder.checkpoints / f"{read_actions(folder.alarms_actions)[-1].to:08d}")
            if not holds_run(folder.path):
                print(f"Stopped by {asked.requested} before the first update; the same command starts again")
                return EXIT_STOPPED
            write_report(folder)
            closing_message(folder, config, "finished" if finished else f"stopped by {asked.requested}")
        except KeyboardInterrupt:
            raise KeyboardInterrupt(interrupted(folder)) from None
        return 0 if finished else EXIT_STOPPED


def _train_in(folder: RunFolder, config: RunConfig, start: str, stop: StopRequest) -> bool:
    """Train until all updates are done (True), or until a stop was requested or an alarm changes options (False).

    Args:
        folder: of the run.
        config: of the run.
        start: what to resume from, as the option ``resume`` says it.
        stop: of the run.

    Raises:
        Cancelled: a stop was requested before the first update of this process.
    """
    expected = reclaim_time(config.trainer)
    with ExitStack() as beside:
        with stop.cancellable():
            store = CheckpointStore(folder.checkpoints, config.checkpoint)
            resumed, on_ray = replace(config, resume=start), config.runtime == "ray"
            # the ranks of a cluster verify it together once they are there
            checkpoint = starting_point(resumed, folder, store, (lambda _: "") if on_ray else damage)
            if checkpoint is not None:
                config = folder.with_its_batches(config)
            given, actions = config, actions_of(checkpoint)
            config = changed(config, actions)
            if config.runtime == "local":
                controller = Controller(config, store)
            else:
                from burnish.runtime.controller import RayController

                controller = RayController(config, store)
            if config.profiler is not None and config.profiler.tool == "nsys":
                command = controller_command(config.profiler, local=config.runtime == "local", folder=folder.profiles)
                log.warning("to profile this process with Nsight Systems, start it with: %s", shlex.join(command))
            fit = beside.enter_context(closing(Fit(config, resumes=checkpoint is not None)))
            with terminal.progress("Reading the data"):
                controller.check_data()
        controller.stop_when(lambda: stop.requested is not None)
        beside.enter_context(controller)
        with stop.cancellable():
            config = fit.settle(controller)
            controller.take(config)
            # that of the run's folder, which the actions of alarms change no more than its user
            rollout = replace(given.rollout, batch_size=config.rollout.batch_size)
            config = replace(
                config, algorithm=given.algorithm, rewards=given.rewards, optimizer=given.optimizer, rollout=rollout
            )
            with terminal.progress("Loading the model"):
                controller.check()
            if checkpoint is not None and on_ray:
                checkpoint = starting_point(resumed, folder, store, controller.damage)
                if actions_of(checkpoint) != actions:
                    raise UserError(
                        "an alarm changed options after the newest checkpoint that is intact; start again with "
                        f"resume={checkpoint.path if checkpoint else 'auto'}"
                    )
        while True:
            try:
                return _attempt(config, folder, controller, checkpoint, actions, stop, expected)
            except NothingLearned:
                write_report(folder)
                raise
            except Exception as error:
                if isinstance(error, RewardsFailing) and holds_run(folder.path):
                    write_report(folder)
                controller.recover(error)
                checkpoint = controller.latest()


def _attempt(
    config: RunConfig,
    folder: RunFolder,
    controller: Controller,
    checkpoint: Checkpoint | None,
    actions: list[Action],
    stop: StopRequest,
    expected: ReclaimTime | None,
) -> bool:
    """Resume from a checkpoint or start, and return whether all updates are done, and nothing is to be done again.

    Args:
        config: of the run, before the actions of alarms.
        folder: of the run.
        controller: of the configuration that they have changed.
        checkpoint: to go on from.
        actions: what alarms did before it.
        stop: of the run.
        expected: when the machine will be reclaimed.
    """
    with stop.cancellable():
        controller.resume(checkpoint)
    expiry = Expiry(expected, stop, margin=config.trainer.grace_period, saving=lambda: controller.saving)
    hooks = RunHooks(config, folder, controller, checkpoint, expiry, actions)
    folder.begin(config, resumed_at=hooks.recorded)

    def stopping() -> bool:
        return expiry.due() or stop.requested is not None or bool(hooks.decided)

    controller.stop_when(stopping, stop.cancellable)
    opening_message(config, controller.items, done=hooks.begun)
    with closing(hooks):
        with nullcontext() if hooks.begun else stop.cancellable():
            hooks.start()
        if not stopping():
            with suppress(Cancelled):
                run(
                    range(hooks.begun + 1, config.steps + 1), controller.source, controller.workers, hooks.all,
                    observers=[hook.observe for hook in hooks.all], watch=controller.watch, stop=stopping,
                    around=controller.profiler.during, devices=config.devices,
                )  # fmt: skip
        hooks.finish()
    if hooks.decided:
        carry_out(folder.alarms_actions, controller.store, actions, hooks.decided)
    return hooks.done and all(one.kind == "stop" for one in hooks.decided)


def with_steps(config: RunConfig) -> RunConfig:
    """The configuration with the ``steps`` that ``data.epochs`` makes of the training records; else as it is.

    Raises:
        UserError: the records can't be read, or other options don't fit that number of updates.
    """
    epochs = config.data.epochs
    if epochs is None:
        return config
    count = len(assemble(config).all_records)
    steps = max(1, math.ceil(epochs * count / config.records))
    counted = replace(config, steps=steps)
    log.info("%g epochs of %d records, %d to an update: %d updates", epochs, count, config.records, counted.steps)
    counted.check()
    return counted


def starting_point(
    config: RunConfig, folder: RunFolder, store: CheckpointStore, damage: Callable[[Checkpoint], str] = damage
) -> Checkpoint | None:
    """The checkpoint to resume from, by the option ``resume``; ``damage`` finds what is wrong with one."""
    resumes = config.resume in ("auto", "never")  # never: there is no run, or it would have been refused
    checkpoint = store.latest(damage) if resumes else read(Path(config.resume), damage)
    if checkpoint is None:
        if folder.checkpoints.is_dir() and any(path.name.isdecimal() for path in folder.checkpoints.iterdir()):
            raise UserError(
                f"{folder.checkpoints} has checkpoints, but none of them is complete, so the run can't resume; "
                "give another output_dir, or delete them to start over"
            )
        # without a checkpoint, options may differ from those of the earlier attempt
        return None
    folder.refuse_other_configuration(config)
    return checkpoint


def actions_of(checkpoint: Checkpoint | None) -> list[Action]:
    """What alarms have done of which a checkpoint is the outcome; it may be of another run."""
    if checkpoint is None:
        return []
    run = RunFolder(checkpoint.path.resolve().parent.parent)
    actions = at_checkpoint(read_actions(run.alarms_actions), checkpoint.update)
    for one in actions:
        log.info("alarm %s acted at update %d: %s", one.alarm, one.update, one.text)
    return actions


def interrupted(folder: RunFolder) -> str:
    """Message after a second Ctrl-C: which updates were not saved."""
    learned = max((row[STEP] for row in folder.read_metrics()), default=0)
    saved = max((int(path.name) for path in numbered(folder.checkpoints)), default=0)
    again = f"the same command resumes after update {saved}" if saved else "the same command starts again"
    last = "" if saved + 1 == learned else f" to {learned}"
    lost = f"update {saved + 1}{last} not saved" if saved < learned else "all updates are saved"
    return f"interrupted by a second Ctrl-C: {lost}; {again}"


class RunHooks:
    """What sees every update of a run: validation, checkpoints, the log, trackers, progress.

    Attributes:
        all: in the order in which they are called.
    """

    def __init__(
        self, config: RunConfig, folder: RunFolder, controller: Controller, checkpoint: Checkpoint | None,
        expiry: Expiry, actions: list[Action],
    ) -> None:  # fmt: skip
        """Make them; nothing is written before ``start``.

        Args:
            config: of the run.
            folder: of the run.
            controller: that trains.
            checkpoint: from which this process goes on; None at the beginning.
            expiry: when the allocation ends.
            actions: what alarms did before.
        """
        self.begun = 0 if checkpoint is None else checkpoint.update  # updates that are done
        self._steps = config.steps
        # metrics of the last of them, if its validation is still to be done; it is then recorded again
        self._unvalidated = None if checkpoint is None else checkpoint.unvalidated
        saved = None if checkpoint is None else checkpoint.path.resolve().parent
        branch = saved is not None and saved != folder.checkpoints.resolve()
        again = self._unvalidated is not None or self.begun == 0
        self._stop = expiry.stop
        self.recorded = None if checkpoint is None else self.begun - again
        unvalidated = None if self._unvalidated is None or branch else self.begun

        def evaluate(target: Path, guidance: float | None) -> Metrics:
            which = "Validation" if guidance is None else f"Validation of the untrained model, guidance {guidance:g}"
            with terminal.progress(which) as controller.assembly.tell:
                return controller.evaluate(target, guidance)

        self._validation = Validation(config, folder, evaluate)
        # without an early checkpoint nobody knows how long saving takes
        early = expiry.expected is not None
        rewinds = config.alarms is not None and "rewind" in config.alarms.on.values()
        first = FirstUpdates(folder, None if saved is None else RunFolder(saved.parent))
        alarms = config.alarms and Alarms(config, folder, config.alarms, first, actions, expiry.stop)
        self.decided = alarms.decided if alarms else []  # what alarms do, once the run has been left
        self._checkpoints = Checkpoints(
            config, controller, self._validation, early=early, unvalidated=unvalidated, untrained=rewinds,
            decided=self.decided,
        )  # fmt: skip
        followers: list[Follower] = []
        if config.checkpoint.copy_to is not None:
            followers.append(Copies(folder, config.checkpoint.copy_to))
        if config.checkpoint.export is not None:
            followers.append(Exports(folder, config.checkpoint.export))
        self.all: list[Hook] = [
            *([first] if alarms else []),
            self._validation,
            *registered_hooks(config.plugins),
            Timeline(folder, controller.watch, controller.assembly.memory, local=config.runtime == "local"),
            Epochs(folder, config, lambda: controller.items),
            GroupLog(folder, lambda: controller.workers.credited),
            *([alarms] if alarms else []),
            Beside(followers, folder, wait=config.checkpoint.wait, option="checkpoint.wait"),
            MetricsLog(folder, resumed_at=self.recorded),
            Failures(folder, config.trainer, steps=config.steps),
            self._checkpoints,
            SampleIndex(config, folder),
            ReportWriter(folder),
            Trackers(config, folder, lambda: self._validation.unfinished, resumed_at=self.recorded),
            Progress(config, done=self.begun),
            expiry,
        ]

    @property
    def done(self) -> bool:
        """Whether all updates and their validations are done."""
        return max(self.begun, self._checkpoints.last) >= self._steps and not self._validation.unfinished

    def start(self) -> None:
        """Start all, and validate what the run begins with, if that is due or was left undone."""
        for hook in self.all:
            hook.start(self.begun)
        if self.begun == 0 or self._unvalidated is not None:
            metrics: dict[str, Any] = dict(self._unvalidated or {})  # shared: hooks add to it for later ones
            for hook in self.all:
                hook(self.begun, metrics)

    def finish(self) -> None:
        """Finish what the last update began."""
        for hook in self.all:
            hook.finish()

    def close(self) -> None:
        """Close all in reverse order, also if one of them fails."""
        self._stop.answer = "training has ended; checkpoints are still copied or exported (at most checkpoint.wait)"
        with ExitStack() as ends:
            for hook in reversed(self.all):
                ends.callback(hook.close)


MARKS = {"gained": ("+", "blue"), "kept": ("=", "blue"), "lost": ("−", "yellow"), "weigh": ("·", "")}


def _steps(config: RunConfig) -> str:
    """Optimizer steps per update."""
    trainer, each = config.trainer, config.steps_per_update
    if each == 1:
        return "An update is one optimizer step on all of its samples"
    size = trainer.mini_batch_size or config.samples
    rest = config.samples % size
    text = f"An update is {each:,} optimizer steps of {size:,} samples (trainer.mini_batch_size"
    text += f", trainer.epochs {trainer.epochs})" if trainer.epochs > 1 else ")"
    return f"{text}; the last one of an epoch has {rest:,}" if rest else text


def opening_message(config: RunConfig, items: int, *, done: int) -> None:
    """Print the sizes of a run, with the options that decide them.

    Args:
        config: of the run.
        items: prompts or records of the training data.
        done: updates of earlier attempts.
    """
    holds, counted = "prompts" if config.grouped else config.holds, terminal.counted
    learned = config.words.samples if config.grouped else holds
    begun = f"; {done:,} of them are done" if done else ""
    epochs = config.steps * config.records / items
    terminal.say(
        f"{counted(config.steps, 'updates')} of {counted(config.samples, learned)} ({config.samples_from}){begun}.\n"
        f"{_steps(config)}.\n"
        f"The run: {counted(config.steps * config.samples, learned)}, "
        f"{counted(config.optimizer_steps, 'optimizer steps')}, "
        f"{epochs:,.3g} epoch{'s' * (epochs != 1)} over {counted(items, holds)}."
    )
    if config.rollout.filter_groups is not None:
        terminal.say("Groups that rollout.filter_groups drops are replaced by further prompts, which are not counted.")
    if getattr(config.rollout, "candidates", None) is not None:
        terminal.say("Candidates of rollout.candidates that are not trained on are not counted.")
    # an own reward comes beside those of the recipe
    weights = {label: one.weight for label, one in config.rewards.items() if one.counts}
    for what, each in (("Scores", config.data.scores or {}), ("Rewards", weights)):
        if each:
            terminal.say(f"{what}: {', '.join(f'{name} (weight {weight:g})' for name, weight in each.items())}.")
    for caution in config.cautions():
        terminal.say(f"Note: {caution}.")


def closing_message(folder: RunFolder, config: RunConfig, outcome: str) -> None:
    """Print it.

    Args:
        folder: of the run.
        config: of the run.
        outcome: how it ended, e.g. "finished" or "stopped by SIGTERM".
    """
    run = Summary.read(folder)
    terminal.say(
        "\n",
        (outcome[:1].upper() + outcome[1:], "bold"),
        f" after {run.updates} of {terminal.counted(config.steps, 'updates')}",
    )
    if run.before is not None and run.after is not None:
        measures = numbers(run)
        rows = [(row["title"], *(cell["text"] for cell in row["cells"])) for row in measures["rows"]]
        terminal.table(("", *measures["heads"]), rows)
        if measures["moved"]:
            terminal.say((f"{measures['moved']}; see the report", "dim"))
    if headline(run):
        terminal.say((headline(run), "bold"))
    for kind, text in verdict(run):
        terminal.say(MARKS[kind], f" {text}")
    for warning in run.warnings():
        terminal.say(("!", "yellow"), f" {warning}")
    terminal.say()
    for name, value in _places(folder, run) + next_steps(folder, run):
        terminal.say((f"{name:<30} ", "dim"), value)


def _places(folder: RunFolder, run: Summary) -> list[tuple[str, str]]:
    last = folder.validation(run.after[STEP]) if run.after else folder.path / "validation"
    places = [
        ("report", folder.report), (run.words.samples, last / "grid.png"), ("metrics", folder.metrics),
        ("curves", folder.tensorboard), ("checkpoints", folder.checkpoints), ("profiles", folder.profiles),
    ]  # fmt: skip
    return [(name, str(path)) for name, path in places if path.exists()]
