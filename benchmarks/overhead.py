"""What the loop costs by itself: everything of a step of the quickstart that is no model work, by phase.

Model work is what happens inside of the networks (forward, backward, text encoder, decoder), in the optimizer, and
while the loop waits for scores of rewards. All else counts as Burnish's own: seeds and noise, the arithmetic of
denoising steps, losses and credit, batches and micro-batches, metrics, the log, progress, checkpoints. The run is in
this process, by the very objects that `burnish train` makes; only validation is left out. The aim is less than 5 %.

    python -m benchmarks.overhead --updates 20 --output overhead.json
"""

import io
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.setting import options, table, write
from burnish.checkpoint.store import CheckpointStore
from burnish.config import RunConfig, load
from burnish.config.run_folder import RunFolder
from burnish.controller import Controller
from burnish.hooks import Hook
from burnish.hooks.checkpoints import Checkpoints, Validation
from burnish.hooks.log import MetricsLog, Progress
from burnish.loop import run
from burnish.metrics import Stopwatch

AIM = 0.05
PHASES = {
    "gen": "sampling", "reward": "waiting for rewards", "ref": "watching the growth of velocities",
    "old_log_prob": "old log-probs", "adv": "advantages", "update_actor": "learning",
    "update_weights": "syncing weights", "step": "between these", "hooks": "metrics, log, progress",
    "checkpoint": "checkpoints",
}  # fmt: skip


class Ledger(Stopwatch):
    """A run's stopwatch that also knows, for the innermost phase, how much of its time was model work."""

    def __init__(self) -> None:
        super().__init__()
        self.whole: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))  # seconds and CPU seconds by phase
        self.work: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
        self._phases, self._since, self._working = ["hooks"], self._now(), False

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._charge()
        self._phases.append(name)
        try:
            with super().__call__(name):
                yield
        finally:
            self._charge()
            self._phases.pop()

    def model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time is model work from now on; one inside of another counts once."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._working:
                return function(*args, **kwargs)
            self._working, start = True, self._now()
            try:
                return function(*args, **kwargs)
            finally:
                self.work[self._phases[-1]] += self._now() - start
                self._working = False

        return counted

    def begin(self) -> None:
        """Forget everything until now."""
        self.whole.clear()
        self.work.clear()
        self._since = self._now()

    def _charge(self) -> None:
        now = self._now()
        self.whole[self._phases[-1]] += now - self._since
        self._since = now

    @staticmethod
    def _now() -> np.ndarray:
        return np.array([time.perf_counter(), time.process_time()])


def measure(updates: int, overrides: list[str]) -> list[dict]:
    """Seconds of a step by phase, the mean over all updates but the first, which starts processes and warms up."""
    with tempfile.TemporaryDirectory() as place:
        config = load("quickstart", [f"output_dir={place}/run", f"steps={updates + 1}", *overrides])
        folder = RunFolder(config.output_dir)
        controller = Controller(config, CheckpointStore(folder.checkpoints, config.checkpoint))
        controller.watch = controller.assembly.watch = ledger = Ledger()
        with controller:
            controller.check()
            _train(config, folder, controller, ledger)
    return rows_of(ledger, updates)


def _train(config: RunConfig, folder: RunFolder, controller: Controller, ledger: Ledger) -> None:
    plain = controller.save

    def save(*what: Any) -> None:
        with ledger("checkpoint"):
            plain(*what)

    def first(update: int, metrics: dict[str, float]) -> None:
        if update == 1:
            ledger.begin()

    controller.save, roles = save, controller.assembly.roles
    for name in ("predict", "condition", "decode"):
        setattr(roles.model, name, ledger.model(getattr(roles.model, name)))
    for group in controller.assembly.groups:
        for optimizer in group.optimizers:
            optimizer.step = ledger.model(optimizer.step)
    folder.begin(config, resumed_at=None)
    hooks: list[Hook] = [
        MetricsLog(folder, resumed_at=None),
        Checkpoints(config, controller, Validation(config, folder, controller.evaluate)),
        Progress(config, done=0, console=Console(file=io.StringIO())),
    ]
    backward = torch.Tensor.backward
    torch.Tensor.backward = ledger.model(backward)
    try:
        for hook in hooks:
            hook.start(0)
        run(range(1, config.steps + 1), controller.source, controller.workers, [*hooks, first],
            watch=ledger, stop=lambda: False)  # fmt: skip
        with ledger("hooks"):  # what came after the last phase
            for hook in hooks:
                hook.finish()
    finally:
        torch.Tensor.backward = backward
        for hook in hooks:
            hook.close()


def rows_of(ledger: Ledger, updates: int) -> list[dict]:
    """A row for each phase, and one for the whole step."""
    found = []
    for phase in [*PHASES, *sorted(ledger.whole.keys() - PHASES.keys())]:
        whole = ledger.whole[phase] / updates
        work = whole if phase == "reward" else ledger.work[phase] / updates
        if whole[0]:
            found.append((PHASES.get(phase, phase), whole, whole - work))
    found.append(("a step", *(np.sum([row[i] for row in found], axis=0) for i in (1, 2))))
    total = found[-1][1]
    return [
        {
            "name": name,
            "seconds": float(whole[0]), "own": max(0.0, float(own[0])), "share": percent(own[0], total[0]),
            "cpu_seconds": float(whole[1]), "own_cpu": max(0.0, float(own[1])), "cpu_share": percent(own[1], total[1]),
        }
        for name, whole, own in found
    ]  # fmt: skip


def percent(part: float, whole: float) -> str:
    return f"{100 * max(0.0, part) / whole:.1f} %"


COLUMNS = {
    "name": "mean over updates", "seconds": "seconds", "own": "of it own", "share": "of the step",
    "cpu_seconds": "CPU-s", "own_cpu": "of it own", "cpu_share": "of the step",
}  # fmt: skip


def main() -> None:
    arguments = options(
        __doc__.splitlines()[0],
        updates={"type": int, "default": 20, "help": "policy updates that count"},
        set={"action": "append", "default": [], "metavar": "OPTION=VALUE", "help": "an option of the quickstart"},
    )
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for the processes that score
    updates, overrides = arguments.updates, arguments.set
    if arguments.smoke:
        updates, overrides = 1, ["data.train_batch_size=2", "rollout.n=2", "rollout.num_inference_steps=6", *overrides]
    rows = measure(updates, overrides)
    own = rows[-1]["own"] / rows[-1]["seconds"]
    print(table(rows, COLUMNS))
    print(f"\nBurnish's own share of a step is {100 * own:.1f} %; the aim is less than {100 * AIM:g} %")
    write(arguments.output, {"updates": updates, "set": overrides, "share": own, "rows": rows})


if __name__ == "__main__":
    main()
