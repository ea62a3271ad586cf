"""Evaluates the policy on held-out prompts in the course of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from burnish.algorithms.base import Metrics
from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.hooks.base import Hook
from burnish.utils.disk import writing
from burnish.utils.errors import Cancelled

Evaluate = Callable[[Path, float | None], Metrics]  # by a folder for samples, and by guidance, None for the run's


class Validation(Hook):
    """Before training, every so many updates, and after the last one."""

    def __init__(self, config: RunConfig, folder: RunFolder, evaluate: Evaluate) -> None:
        self.config, self.folder, self.evaluate = config, folder, evaluate
        self.given_up = False  # the run is to stop, and the last one that was due is still to be done

    def start(self, done: int) -> None:
        """Before the first update the policy is the untrained model: guide it, for a line to compare with."""
        scale = self.config.reference_guidance
        if not done and scale is not None:
            metrics = self.evaluate(self.folder.reference, scale)
            text = json.dumps({"guidance_scale": scale} | metrics, indent=1)
            with writing(self.folder.reference):
                (self.folder.reference / "metrics.json").write_text(text)

    def due(self, update: int) -> bool:
        """Whether the policy is evaluated after this update."""
        every = self.config.validation.every
        return update in (0, self.config.steps) or bool(every and update % every == 0)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if not self.due(update):
            return
        start = time.perf_counter()
        try:
            metrics |= self.evaluate(self.folder.validation(update), None)
        except Cancelled:
            self.given_up = True
        else:
            metrics["timing_s/testing"] = time.perf_counter() - start
