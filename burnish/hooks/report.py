"""What is written for readers during the run: the report, and the indices of kept samples."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.hooks import Hook
from burnish.hooks.checkpoints import validation_reward
from burnish.report.page import write_report
from burnish.tasks.sample_files import write_index
from burnish.utils.errors import UserError

log = logging.getLogger(__name__)

SHARE = 0.02  # of a run's time that reports may take


class ReportWriter(Hook):
    """Writes report.html after validations, so seldom that a run is not slowed down."""

    def __init__(self, folder: RunFolder, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.clock = folder, clock
        self._next = -1.0

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        begun = self.clock()
        if validation_reward(metrics) is None or begun < self._next:
            return
        try:
            write_report(self.folder)
        except UserError as error:
            log.warning("the report can't be written now: %s", error)
        took = self.clock() - begun
        self._next = begun + took / SHARE


class SampleIndex(Hook):
    """Gathers what was written, after every update of which samples are kept and after every validation."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self.training, self.validation, self.folder = config.rollout.save, config.validation.save, folder

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if self.training is not None and update > 0 and (update - 1) % self.training.every == 0:
            write_index(self.folder.samples)
        if self.validation is not None and self.folder.validation(update).is_dir():
            write_index(self.folder.validation_samples)
