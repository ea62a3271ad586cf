"""The controller of a run: this process, or, by the same protocol, the workers of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self

from burnish.checkpoint.files import Checkpoint
from burnish.checkpoint.store import CheckpointStore
from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.loop import Workers
from burnish.rewards.scoring import RewardsFailing
from burnish.rl.algorithm import Metrics
from burnish.rollout.sources import Source
from burnish.tasks import assemble
from burnish.tasks.outline import check_layers
from burnish.training.profiling import LOCAL, Profiler, gpu_bytes
from burnish.training.ranks import SINGLE_RANK, Ranks

log = logging.getLogger(__name__)


class Controller:
    """Runs training for a command. It is entered once; processes that it starts end with it."""

    source: Source  # where batches come from, once ``check`` is done
    workers: Workers  # who learns from them
    items: int = 0  # training prompts or records

    def __init__(self, config: RunConfig, store: CheckpointStore, ranks: Ranks, *, role: str, profiled: bool) -> None:
        """Args: ``role`` is this process's in recordings of the profiler, ``profiled`` whether it makes some."""
        self.config, self.store = config, store
        self.assembly = assemble(config, ranks)
        self.assembly.trains = True
        self.watch = self.assembly.watch
        options, folder = config.profiler if profiled else None, RunFolder(config.output_dir).profiles
        self.profiler = Profiler(options, role=role, rank=0, folder=folder, watch=self.watch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        raise NotImplementedError

    def stop_when(
        self,
        stop: Callable[[], bool],
        cancellable: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Stop sampling early where nobody would learn from the samples.

        Args:
            stop: whether to.
            cancellable: around what can't ask: a request to stop ends it, by Cancelled.
        """
        self.assembly.stop, self.assembly.cancellable = stop, cancellable

    @property
    def saving(self) -> float:
        """Seconds that it takes to have everything saved, as far as that is known yet."""
        raise NotImplementedError

    def check_data(self) -> None:
        """Find errors in data, and names of layers that aren't there, before any weights are loaded or anything is
        started."""
        self.assembly.check_data()
        check_layers(self.assembly)

    def gpu_memory(self) -> dict[str, int]:
        """Bytes of memory of a GPU of each pool, before anything is loaded; a pool without GPUs is left out."""
        raise NotImplementedError

    def take(self, config: RunConfig) -> None:
        """Go on with these sizes of batches, before anything is loaded."""
        self.config = self.assembly.config = config

    def check(self) -> None:
        """Find what only the loaded model can tell, before a run has left anything behind."""
        raise NotImplementedError

    def resume(self, checkpoint: Checkpoint | None) -> None:
        """Go on from a checkpoint, or begin; the rollout workers have the weights after this."""
        raise NotImplementedError

    def evaluate(self, target: Path | None, guidance: float | None) -> Metrics:
        """Evaluate the weights that are exported; see ``burnish.tasks.evaluate``.

        Raises:
            Cancelled: the run is to stop.
        """
        raise NotImplementedError

    def save(self, update: int, score: float | None, unvalidated: Metrics | None) -> Any:
        """Write a checkpoint of everything after ``update`` policy updates; see ``burnish.hooks.checkpoints``."""
        raise NotImplementedError

    def validated(self, update: int, score: float | None) -> None:
        """Write down that the validation of a checkpoint is done, which was saved before it."""
        raise NotImplementedError

    def raise_failed(self) -> None:
        """Raise the error of a ``save`` that has failed in the background."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until what ``save`` was given is written."""
        raise NotImplementedError

    def recover(self, error: Exception) -> None:
        """Be ready for ``resume`` again after an error.

        Raises:
            Exception: the same, where that is not possible.
        """
        raise error


class LocalController(Controller):
    """This process; or one of several ranks, which call everything together."""

    def __init__(self, config: RunConfig, store: CheckpointStore, ranks: Ranks = SINGLE_RANK) -> None:
        # the ranks of a cluster are recorded by their actors
        super().__init__(config, store, ranks, role=LOCAL, profiled=config.runtime == "local")

    def __enter__(self) -> Self:
        self.assembly.scorer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.assembly.scorer.close()
        self.assembly.close()
        self.store.__exit__(kind, *error)

    @property
    def saving(self) -> float:
        return self.store.seconds

    def gpu_memory(self) -> dict[str, int]:
        found = None if self.config.model.device == "cpu" else gpu_bytes()
        return {} if found is None else {"train": found}

    def check(self) -> None:
        assembly = self.assembly
        if self.config.scoring.probe and assembly.ranks.rank == 0:
            assembly.probe()
        assembly.check()
        self.source, self.workers, self.items = assembly.source, assembly.workers, len(assembly.source.stream.items)

    def resume(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            self.assembly.load_state_dict(checkpoint.load(self.assembly.identity, self.assembly.state_dict()))

    def evaluate(self, target: Path | None, guidance: float | None) -> Metrics:
        assembly = self.assembly
        with assembly.trained_weights():
            metrics = assembly.evaluate(target, n=assembly.config.validation.n, guidance=guidance)
            return metrics | (assembly.evaluate_suites(target) if guidance is None else {})

    def save(self, update: int, score: float | None, unvalidated: Metrics | None) -> Path:
        assembly = self.assembly
        with self.watch("save_checkpoint"):
            return self.store.save(
                update, assembly.state_dict(), identity=assembly.identity, score=score, unvalidated=unvalidated
            )

    def validated(self, update: int, score: float | None) -> None:
        self.store.validated(update, score)

    def raise_failed(self) -> None:
        self.store.raise_failed()

    def settle(self) -> None:
        self.store.wait()

    def recover(self, error: Exception) -> None:
        """Save what was learned, where rewards fail too often for the run to go on."""
        if isinstance(error, RewardsFailing):
            version, newest = self.assembly.workers.version, self.store.latest()
            if version and (newest is None or newest.update < version):
                path = self.save(version, None, None)
                self.settle()
                log.warning("the run can't go on; its weights are saved in %s", path)
        raise error
