"""How often a run has gone through its data, also after it was resumed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from burnish.config.run_folder import STEP, RunFolder
from burnish.hooks.epochs import EPOCH, Epochs

CONFIG = SimpleNamespace(batches_per_update=2, data=SimpleNamespace(train_batch_size=4))


def epochs(folder: RunFolder, done: int = 0) -> Epochs:
    hook = Epochs(folder, CONFIG, lambda: 32)
    hook.start(done)
    return hook


def told(hook: Epochs, update: int, **metrics: float) -> float:
    given = dict(metrics)
    hook(update, given)
    return given[EPOCH]


def test_every_batch_counts(tmp_path: Path):
    hook, nothing = epochs(RunFolder(tmp_path)), {}
    hook(0, nothing)
    assert nothing == {}
    assert told(hook, 1) == 0.25
    assert told(hook, 2, **{"train/num_gen_batches": 3.0}) == 1.0


def test_a_resumed_run_goes_on(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(json.dumps({STEP: 2, EPOCH: 1.0}) + "\n")
    hook = epochs(folder, 2)
    assert told(hook, 2) == 1.0, "an update whose validation is made up for is no further one"
    assert told(hook, 3) == 1.25
    assert told(epochs(RunFolder(tmp_path / "elsewhere"), 2), 3) == 0.75
