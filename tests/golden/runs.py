"""Runs of the tables, and what is kept of each: metrics and a digest of the weights."""

import json
import math
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch

from burnish.config.yaml_text import parse
from tests.support.tiny_run import UPDATES, TinyRun

TABLE = parse((Path(__file__).parent / "runs.yaml").read_text())
HALVES: dict[str, dict[str, tuple[str, list[str]]]] = {
    half: {name: (run["model"], run["options"]) for name, run in runs.items()} for half, runs in TABLE.items()
}


@dataclass
class Found:
    metrics: dict[str, list[float | None]]  # of every line of metrics.jsonl, by name; None where a line lacks one
    weights: str  # digest of the weights in the last checkpoint

    @property
    def digest(self) -> str:
        """Of both, to the last bit."""
        return sha256(json.dumps([self.metrics, self.weights], sort_keys=True).encode()).hexdigest()[:16]


def run_of(files: Path, half: str, name: str) -> TinyRun:
    """The run of that name, not yet begun."""
    model, options = HALVES[half][name]
    place = f"{half}/{name.replace(' ', '-')}"
    return TinyRun(files, half, model, f"algorithm={name.split()[0]}", *options, name=place)


def train(files: Path, half: str, name: str) -> Found:
    """Do the run of that name with the files of a folder."""
    run = run_of(files, half, name)
    run.train()
    lines = run.metrics
    assert [line["training/global_step"] for line in lines if "actor/loss" in line] == list(range(1, UPDATES + 1))
    assert all(line.get("actor/skipped_updates", 0) == 0 for line in lines)
    metrics = {
        name: [line.get(name) for line in lines] for name in dict.fromkeys(name for line in lines for name in line)
    }
    assert all(math.isfinite(value) for column in metrics.values() for value in column if value is not None)
    digests = sorted(
        sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()
        for key, tensor in run.tensors.items() if ".optimizer." not in key
    )  # fmt: skip
    return Found(metrics, sha256("".join(digests).encode()).hexdigest()[:16])
