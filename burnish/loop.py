"""The training loop, the same for all algorithms, models and runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from burnish.metrics import Stopwatch, collected_metrics, timing_metrics
from burnish.rl.algorithm import Metrics
from burnish.rollout.sources import Source
from burnish.types.rollout import Collected


class Workers(Protocol):
    """Holds the networks: this process, or a group of ranks."""

    credited: list[float] | None  # advantage of each sample of the last batch; None where samples have none

    def compute_logprobs(self, scored: Collected) -> Any:
        """Add what needs a forward pass."""

    def compute_advantages(self, annotated: Any) -> tuple[Any, Metrics]:
        """Rewards to a training signal: tensors only."""

    def update(self, batch: Any, update: int) -> Metrics:
        """Mini-batches, micro-batches and optimizer steps."""

    def sync_weights(self, version: int) -> None:
        """Sample with the present weights from now on."""


Hook = Callable[[int, Metrics], None]
Observer = Callable[[int, Collected], None]


def run(
    updates: Iterable[int],
    source: Source,
    workers: Workers,
    hooks: Sequence[Hook],
    *,
    observers: Sequence[Observer] = (),
    watch: Stopwatch,
    stop: Callable[[], bool],
    around: Callable[[int], AbstractContextManager[Any]] = nullcontext,
    devices: int = 1,
) -> None:
    """Train until the updates are done or ``stop()``, which is checked after each update and its hooks.

    Observers see every batch before anything is learned from it.

    Every update runs in the context ``around(update)``. Throughput is per device.
    """
    for update in updates:
        with around(update), watch("step"):
            scored = source.rollout(update)
            for observe in observers:
                observe(update, scored)
            learned = _learn(scored, workers, update)
            with watch("update_weights"):
                workers.sync_weights(update)
        metrics = collected_metrics(scored) | learned
        metrics |= timing_metrics(watch.drain(), len(scored), scored.lengths, devices=devices)
        del scored  # or it would take up memory while the next one is sampled
        for hook in hooks:
            hook(update, metrics)
        if stop():
            return


def _learn(scored: Collected, workers: Workers, update: int) -> Metrics:
    """Log-probs, advantages, update; an empty batch is skipped and counted."""
    if not len(scored):
        return {"actor/skipped_updates": 1.0, "actor/empty_updates": 1.0}
    batch, credited = workers.compute_advantages(workers.compute_logprobs(scored))
    return credited | workers.update(batch, update)
