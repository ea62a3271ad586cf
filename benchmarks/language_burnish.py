"""One side of ``benchmarks.language``: Burnish's own assembly and loop. Its argument is a setting as JSON.

The model runs as it was checked on load, or with the least that any class can do,
for models in which nothing can be padded: only rows of one length share a forward, and no prompt is shared.
An update is one forward and backward pass over all samples, as TRL's is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from benchmarks.language_meter import Meter
from burnish.config.load import load
from burnish.language.model.capabilities import Capabilities
from burnish.loop import run
from burnish.tasks import assemble

RECIPE = """
task: image-text-to-text
model: {{path: {folder}/model, device: cpu}}
data: {{train_files: {folder}/train.jsonl, train_batch_size: {prompts}}}
algorithm: {{name: grpo}}
rewards:
  letters: {{name: function, path: "benchmarks.language_burnish:letters"}}
scoring: {{processes: 0}}
trainer: {{micro_batch_tokens: 8192}}
rollout: {{n: {n}, max_new_tokens: {tokens}, min_new_tokens: {tokens}}}
optimizer: {{lr: {lr}}}
steps: 1000000
output_dir: {folder}/{side}
"""


def letters(responses: Sequence[Any], prompts: Sequence[Any]) -> list[float]:
    """The share of letters in a response."""
    return [sum(map(str.isalpha, response.text)) / max(len(response.text), 1) for response in responses]


def train(setting: dict[str, Any]) -> None:
    """Train for as many steps as are asked for."""
    recipe = Path(setting["folder"]) / f"{setting['side']}.yaml"
    side = setting["side"]
    recipe.write_text(RECIPE.format(**setting))
    config = load(str(recipe))
    assembly, meter = assemble(config), Meter(setting["prompts"] * setting["n"])
    if side == "lowest":
        model: Any = assembly.engine.roles.model
        model.capabilities = Capabilities(padded=True, cache="padded")
    workers, collect = assembly.workers, assembly.source.rollout
    tokens: list[float] = []

    def collected(update: int) -> Any:
        with meter.rollout():
            answered = collect(update)
        tokens.append(answered.trace.length.float().mean().item())
        return answered

    def asked() -> Iterator[int]:
        update = 0
        while update := update + 1:
            for group in workers.groups:
                group.zero_grad()  # gradients are no part of the model at rest
            meter.wait()
            yield update

    assembly.source.rollout = collected
    with closing(assembly.scorer):
        run(
            asked(), assembly.source, workers, [lambda *_: meter.done(tokens.pop())],
            watch=assembly.watch, stop=lambda: False,
        )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(json.loads(sys.argv[1]))
