"""Runs of the second quickstart in this process, an update at a time."""

from __future__ import annotations

import io

import torch

from burnish.config import load
from burnish.loop import run
from burnish.tasks import assemble

ASSETS = "burnish:vlm_quickstart"
SMALL = [
    "data.train_batch_size=4", "rollout.n=2", "validation.n=1", "scoring.processes=0", "optimizer.warmup_steps=0",
    "steps=3", "output_dir=unused", "ema.decay=0.9",
]  # fmt: skip
GAME = [
    *SMALL, "trainer.mini_batch_size=null", "rollout.max_new_tokens=6", "environment.max_turns=4",
    "environment.name=function",
    "environment.path=tests.support.games:Show", "rewards.environment.weight=0.5", "rewards.exact=null",
]  # fmt: skip


def assembly_of(*overrides):
    config = load("vlm_quickstart", list(overrides))
    assembly = assemble(config)
    assembly.check_data()
    assembly.check()
    return assembly


def trained(assembly, first: int, last: int) -> list[dict]:
    rows: list[dict] = []
    run(range(first, last + 1), assembly.source, assembly.workers,
        [lambda update, metrics: rows.append(dict(metrics))], watch=assembly.watch, stop=lambda: False)  # fmt: skip
    return rows


def weights(assembly) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in assembly.roles.parameters().values()])


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def game(fails="", turns=3):
    return [*GAME, f"environment.arguments={{opening: true, pictures: true, fails: '{fails}', turns: {turns}}}"]
