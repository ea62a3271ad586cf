"""Forecasts of memory beside counted runs on real tensors, phase by phase.

    python -m benchmarks.forecasts quickstart algorithm=flow_grpo model.lora=null
    python -m benchmarks.forecasts my_recipe.yaml model.path=DIR model.dtype=bfloat16

The run on real tensors is two policy updates on this machine's CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from burnish.config import load
from burnish.plan import measure
from burnish.plan.counter import BATCH, STORED, LiveBytes, Peak
from burnish.plan.fakes import Pretending
from burnish.plan.forecast import half_of
from burnish.plan.language import LanguageHalf
from burnish.plan.measure import train_phases
from burnish.tasks import assemble
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.utils.weights import without_weights


class Aside(LiveBytes):
    """Counts what ranks hold that exchange tensors by gloo.

    Its threads let go of tensors some time after an exchange is over, where a GPU frees memory in the order of its
    stream. So they are given copies, which are not counted, and an exchange is over when it is begun.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            func = _Exchange(func)
        return super().__torch_dispatch__(func, types, args, kwargs)


class _Exchange:
    """A collective operation of torch.distributed on copies of its tensors."""

    def __init__(self, func: Any) -> None:
        self.func, self.namespace, self.name = func, func.namespace, func.name
        self.overloadpacket, self._schema = func.overloadpacket, func._schema

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        originals: dict[int, Tensor] = {}
        copies: list[Tensor] = []

        def copied(tensor: Tensor) -> Tensor:
            copies.append(tensor.clone())
            originals[id(copies[-1])] = tensor
            return copies[-1]

        found = self.func(*tree_map_only(Tensor, copied, args), **tree_map_only(Tensor, copied, kwargs))
        if self.namespace == "c10d":
            work = found[-1] if isinstance(found, tuple) else found
            torch.distributed.Work.unbox(work).wait()
        else:
            tree_map_only(Tensor, torch.ops._c10d_functional.wait_tensor, found)
            # what an operation returns is the caller's, and gloo's threads may hold it still
            found = tree_map_only(Tensor, lambda one: one if id(one) in originals else one.clone(), found)
        for copy in copies:
            originals[id(copy)].copy_(copy)
        return tree_map_only(Tensor, lambda one: originals.get(id(one), one), found)


def peaks(
    recipe: str, options: Sequence[str], *, fake: bool, drawn: bool = False, ranks: Ranks = SINGLE_RANK
) -> dict[str, Peak]:
    """What a process of a run holds in every phase.

    Args:
        recipe: of the run.
        options: of the run.
        fake: forecast it.
        drawn: networks have random weights, for which no files are needed.
        ranks: that train together.
    """
    counter = LiveBytes() if fake or ranks.size == 1 else Aside()
    pretending = Pretending()
    with ExitStack() as contexts:
        config = load(recipe, list(options))
        if fake or drawn:  # what a class can do was measured, and is not found out from random weights
            contexts.enter_context(half_of(config).without_values(config, counter, shared=ranks.size > 1))
            contexts.enter_context(without_weights())
        contexts.enter_context(pretending.active(counter) if fake else counter)
        assembly = assemble(config, ranks)
        half = half_of(config)(assembly, counter, pretending)
        if fake or isinstance(half, LanguageHalf):
            measure.load(assembly, counter, half)
            half.prepare()
            half.begin()
            train_phases(assembly, counter, half)
        else:
            _train(assembly, counter, half)
    return counter.peaks


def _train(assembly: Any, counter: LiveBytes, half: Any) -> None:
    """Two updates of a generator in full, with the phases that a forecast has."""
    measure.load(assembly, counter, half)
    trainer = assembly.workers
    if assembly.config.reference_guidance is not None:
        with counter.phase(measure.BASELINE), assembly.trained_weights():
            half.draw(measure.held_out(assembly, assembly.config.reference_guidance))
    for update in (1, 2):
        with counter.phase(measure.SAMPLE):
            scored = measure.collect(assembly, counter, update)
            counter.label(STORED, half.caches())
        with counter.phase(measure.LOGPROBS):
            batch, _ = trainer.compute_advantages(trainer.compute_logprobs(scored))
            counter.label(BATCH, batch)
        with measure.phases_of_updates(counter, trainer.groups):
            trainer.update(batch, update)
        del scored, batch
        with counter.phase(measure.SYNC):
            trainer.sync_weights(update)
    if assembly.config.validates:
        with counter.phase(measure.VALIDATE), assembly.trained_weights():
            half.validate()
    with counter.phase(measure.SAVE):
        _ = trainer.state_dict()


def main() -> None:
    recipe, *options = sys.argv[1:] or ["quickstart"]
    forecast, real = (peaks(recipe, options, fake=fake) for fake in (True, False))
    print("| phase | forecast, MiB | counted, MiB | difference |\n| --- | --- | --- | --- |")
    for name, peak in real.items():
        found = forecast[name].total
        print(f"| {name} | {found / 2**20:.1f} | {peak.total / 2**20:.1f} | {found / peak.total - 1:+.1%} |")


if __name__ == "__main__":
    main()
