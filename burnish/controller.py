"""Who does the work of a run: one process, or the workers of a cluster behind the same words."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from burnish.algorithms.base import Metrics
from burnish.checkpoint.files import PARTS, Checkpoint
from burnish.checkpoint.store import CheckpointStore
from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.loop import Workers
from burnish.rollout.base import Source
from burnish.tasks import assemble
from burnish.training.profiling import LOCAL, Profiler
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.utils.timer import Stopwatch


class Controller(Protocol):
    """What a command that trains asks for. It is entered once; what runs beside this process ends with it."""

    watch: Stopwatch
    stop: Callable[[], bool]  # whether samples that nobody has learned from are to be given up
    cancellable: Callable[[], AbstractContextManager[None]]  # around what a request to stop has to end by force
    profiler: Profiler  # of this process

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def source(self) -> Source:
        """Where batches come from."""

    @property
    def workers(self) -> Workers:
        """Who learns from them."""

    @property
    def items(self) -> int:
        """Prompts or records that are learned on."""

    @property
    def saving(self) -> float:
        """Seconds that it takes to have everything saved, as far as that is known yet."""

    def check_data(self) -> None:
        """Find errors in data, before any weights are loaded and before anything is started."""
        ...

    def check(self) -> None:
        """Find what only the loaded model can tell, before a run has left anything behind."""
        ...

    def resume(self, checkpoint: Checkpoint | None) -> None:
        """Go on from a checkpoint, or begin; whoever samples has the weights after this."""
        ...

    def evaluate(self, target: Path | None, guidance: float | None) -> Metrics:
        """Evaluate the weights that are exported; see ``burnish.tasks.evaluate``.

        Raises:
            Cancelled: the run is to stop.
        """
        ...

    def save(self, update: int, score: float | None, unvalidated: Metrics | None) -> Any:
        """Write a checkpoint of everything after so many policy updates; see ``burnish.hooks.checkpoints``."""
        ...

    def validated(self, update: int, score: float | None) -> None:
        """Write down that the validation of a checkpoint is done, which was saved before it."""
        ...

    def settle(self) -> None:
        """Wait until what ``save`` was given is written."""
        ...

    def recover(self, error: Exception) -> None:
        """Be ready for ``resume`` again after an error.

        Raises:
            Exception: the same, where that is not possible.
        """
        ...


class LocalController:
    """This process; or one of several ranks, which call everything together."""

    def __init__(self, config: RunConfig, store: CheckpointStore, ranks: Ranks = SINGLE_RANK) -> None:
        self.assembly, self.store = assemble(config, ranks), store
        self.watch = self.assembly.watch
        folder = RunFolder(config.output_dir).profiles
        recorded = config.profiler if config.runtime == "local" else None  # else whoever leads the ranks knows when
        self.profiler = Profiler(recorded, role=LOCAL, rank=0, folder=folder, watch=self.watch)

    @property
    def stop(self) -> Callable[[], bool]:
        return self.assembly.stop

    @stop.setter
    def stop(self, stop: Callable[[], bool]) -> None:
        self.assembly.stop = stop

    @property
    def cancellable(self) -> Callable[[], AbstractContextManager[None]]:
        return self.assembly.cancellable

    @cancellable.setter
    def cancellable(self, cancellable: Callable[[], AbstractContextManager[None]]) -> None:
        self.assembly.cancellable = cancellable

    def __enter__(self) -> Self:
        self.assembly.scorer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.assembly.scorer.close()
        self.assembly.close()
        self.store.__exit__(kind, error, trace)

    @property
    def source(self) -> Source:
        return self.assembly.source

    @property
    def workers(self) -> Workers:
        return self.assembly.workers

    @property
    def items(self) -> int:
        return len(self.assembly.source.stream.items)

    @property
    def saving(self) -> float:
        return self.store.seconds

    def check_data(self) -> None:
        self.assembly.check_data()

    def check(self) -> None:
        if self.assembly.config.scoring.probe and self.assembly.ranks.rank == 0:
            self.assembly.probe()
        self.assembly.check()

    def resume(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            self.assembly.load_state_dict(checkpoint.load(self.assembly.identity, PARTS))

    def evaluate(self, target: Path | None, guidance: float | None) -> Metrics:
        assembly = self.assembly
        with assembly.trained_weights(), assembly.roles.shards.gathered(["policy"]):
            return assembly.evaluate(target, n=assembly.config.validation.n, guidance=guidance)

    def save(self, update: int, score: float | None, unvalidated: Metrics | None) -> Path:
        assembly = self.assembly
        return self.store.save(
            update, assembly.state_dict(), identity=assembly.identity, score=score, unvalidated=unvalidated
        )

    def validated(self, update: int, score: float | None) -> None:
        self.store.validated(update, score)

    def settle(self) -> None:
        self.store.wait()

    def recover(self, error: Exception) -> None:
        raise error
