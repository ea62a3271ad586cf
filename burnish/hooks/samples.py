"""The indices of the samples that a run keeps."""

from __future__ import annotations

from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.hooks import Hook
from burnish.tasks.kept import write_index


class SampleIndex(Hook):
    """Gathers what was written, after every update of which samples are kept and after every validation."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self.training, self.validation, self.folder = config.rollout.save, config.validation.save, folder

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if self.training is not None and update > 0 and (update - 1) % self.training.every == 0:
            write_index(self.folder.samples)
        if self.validation is not None and self.folder.validation(update).is_dir():
            write_index(self.folder.validation_samples)
