"""How often a run has gone through its data."""

from __future__ import annotations

from collections.abc import Callable

from burnish.config import RunConfig
from burnish.config.run_folder import STEP, RunFolder
from burnish.hooks import Hook

EPOCH = "training/epoch"


class Epochs(Hook):
    """Passes over the training prompts or records so far, those included that were sampled and left out."""

    def __init__(self, folder: RunFolder, config: RunConfig, items: Callable[[], int]) -> None:
        """Args: ``items`` are the prompts or records that there are."""
        self.folder, self.config, self.items = folder, config, items
        self.batches, self._counted = 0.0, 0  # taken so far, and in how many updates

    def start(self, done: int) -> None:
        """Go on where the run stood after ``done`` updates."""
        self.batches, self._counted = done * self.config.batches_per_update, done
        if not self.folder.metrics.exists():
            return
        known = [row[EPOCH] for row in self.folder.read_metrics() if row[STEP] == done and row.get(EPOCH)]
        if known and done:
            self.batches = round(known[-1] * self.items() / self.config.data.train_batch_size)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if update == 0:
            return
        if update > self._counted:  # one whose validation is made up for has been counted
            self.batches += metrics.get("train/num_gen_batches", 1.0) * self.config.batches_per_update
            self._counted = update
        metrics[EPOCH] = self.batches * self.config.data.train_batch_size / max(self.items(), 1)
