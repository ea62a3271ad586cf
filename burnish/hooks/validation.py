"""Validation during a run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.hooks import Hook
from burnish.rl.algorithm import Metrics
from burnish.utils.disk import writing
from burnish.utils.errors import Cancelled

Evaluate = Callable[[Path, float | None], Metrics]  # of a folder for samples and a guidance scale, None for the run's


class Validation(Hook):
    """Evaluates the policy before training, every N updates, and after the last one, as far as the options say."""

    def __init__(self, config: RunConfig, folder: RunFolder, evaluate: Evaluate) -> None:
        self.config, self.folder, self.evaluate = config, folder, evaluate
        self.unfinished = False  # whether a stop cancelled the last one

    def start(self, done: int) -> None:
        """Evaluate the untrained model with guidance, as a baseline."""
        scale = self.config.reference_guidance
        if not done and scale is not None:
            metrics = self.evaluate(self.folder.reference, scale)
            text = json.dumps({"guidance_scale": scale} | metrics, indent=1)
            with writing(self.folder.reference):
                (self.folder.reference / "metrics.json").write_text(text)

    def due(self, update: int) -> bool:
        """Whether the policy is evaluated after this update."""
        options = self.config.validation
        if update == 0:
            return bool(options.before)
        if options.every is None:
            return False
        return update == self.config.steps or bool(options.every and update % options.every == 0)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if not self.due(update):
            return
        start = time.perf_counter()
        try:
            metrics |= self.evaluate(self.folder.validation(update), None)
        except Cancelled:
            self.unfinished = True
        else:
            metrics["timing_s/testing"] = time.perf_counter() - start
