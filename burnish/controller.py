"""The controller of a run: this process; the workers of a cluster have one of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Self

from burnish.checkpoint.files import Checkpoint, damage
from burnish.checkpoint.store import CheckpointStore
from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.loop import Workers
from burnish.rewards.scoring import RewardsFailing, Scorer
from burnish.rl.algorithm import Metrics
from burnish.rollout.sources import Source
from burnish.tasks import assemble
from burnish.tasks.assembly import check_layers
from burnish.tasks.evaluate import run_anew
from burnish.training.profiling import LOCAL, Profiler, gpu_bytes
from burnish.training.ranks import SINGLE_RANK, Ranks

log = logging.getLogger(__name__)


class Controller:
    """Runs training for a command, in this process or as one of several ranks, which call everything together.

    It is entered once; processes that it starts end with it.
    """

    source: Source  # where batches come from, once ``check`` is done
    workers: Workers  # who learns from them
    items: int = 0  # training prompts or records

    def __init__(
        self,
        config: RunConfig,
        store: CheckpointStore,
        ranks: Ranks = SINGLE_RANK,
        *,
        role: str = LOCAL,
        scorer: Scorer | None = None,
    ) -> None:
        """Args: ``role`` is this process's in recordings of the profiler; ``scorer`` see ``burnish.tasks.assemble``."""
        self.config, self.store = config, store
        self.assembly = assemble(config, ranks, trains=True, scorer=scorer)
        self.watch = self.assembly.watch
        # the ranks of a cluster are recorded by their actors
        options = None if role == LOCAL and config.runtime != "local" else config.profiler
        self.profiler = Profiler(
            options, role=role, rank=0, folder=RunFolder(config.output_dir).profiles, watch=self.watch
        )

    def __enter__(self) -> Self:
        self.assembly.scorer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.assembly.scorer.close()
        self.assembly.close()
        self.store.close(kind)

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
        self.assembly.stop.asked, self.assembly.stop.around = stop, cancellable

    @property
    def saving(self) -> float:
        """Seconds that it takes to have everything saved, as far as that is known yet."""
        return self.store.seconds

    def check_data(self) -> None:
        """Find errors in data, and names of layers that aren't there, before any weights are loaded or anything is
        started."""
        self.assembly.check_data()
        check_layers(self.assembly)

    def gpu_memory(self) -> dict[str, int]:
        """Bytes of memory of a GPU of each pool, before anything is loaded; a pool without GPUs is left out."""
        found = None if self.config.model.device == "cpu" else gpu_bytes()
        return {} if found is None else {"train": found}

    def take(self, config: RunConfig) -> None:
        """Go on with these sizes of batches, before anything is loaded."""
        self.config = self.assembly.config = config

    def check(self) -> None:
        """Find what only the loaded model can tell, before a run has left anything behind."""
        assembly = self.assembly
        if self.config.scoring.probe and assembly.ranks.rank == 0:
            assembly.probe()
        assembly.check()
        self.source, self.workers, self.items = assembly.source, assembly.workers, len(assembly.source.stream.items)

    def resume(self, checkpoint: Checkpoint | None) -> None:
        """Go on from a checkpoint, or begin; the rollout workers have the weights after this."""
        if checkpoint is not None:
            self.assembly.load_state_dict(checkpoint.load(self.assembly.identity, self.assembly.state_dict()))

    def damage(self, checkpoint: Checkpoint) -> str:
        """What is wrong with the content of a checkpoint, which those verify who resume from it; "" for nothing."""
        return damage(checkpoint)

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        return self.store.latest(self.damage)

    def evaluate(self, target: Path | None, guidance: float | None) -> Metrics:
        """Evaluate the weights that are exported; see ``burnish.tasks.evaluate``.

        Raises:
            Cancelled: the run is to stop.
        """
        assembly = self.assembly
        with assembly.trained_weights():
            metrics = assembly.evaluate(target, n=assembly.config.validation.n, guidance=guidance)
            if guidance is None:
                metrics |= run_anew(assembly.suites, target, source=self.config.output_dir)
            return metrics

    def save(self, update: int, score: float | None, unvalidated: Metrics | None) -> Path:
        """Write a checkpoint of everything after ``update`` policy updates; see ``burnish.hooks.checkpoints``."""
        assembly = self.assembly
        with self.watch("save_checkpoint"):
            return self.store.save(
                update, assembly.state_dict(), identity=assembly.identity, score=score, unvalidated=unvalidated
            )

    def validated(self, update: int, score: float | None) -> None:
        """Write down that the validation of a checkpoint is done, which was saved before it."""
        self.store.validated(update, score)

    def raise_failed(self) -> None:
        """Raise the error of a ``save`` that has failed in the background."""
        self.store.raise_failed()

    def settle(self) -> None:
        """Wait until what ``save`` was given is written."""
        self.store.wait()

    def recover(self, error: Exception) -> None:
        """Be ready for ``resume`` again after an error.

        Where rewards fail too often for the run to go on, what was learned is saved.

        Raises:
            Exception: the same, where that is not possible.
        """
        if isinstance(error, RewardsFailing):
            self._rescue(self.assembly.workers.version, lambda version: self.save(version, None, None))
        raise error

    def _rescue(self, version: int, save: Callable[[int], Path]) -> None:
        """Save what was learned, as the run can't go on."""
        newest = self.store.latest()
        if version and (newest is None or newest.update < version):
            path = save(version)
            self.settle()
            log.warning("the run can't go on; its weights are saved in %s", path)
