"""Forecasts of memory beside counted runs on real tensors, phase by phase.

    python -m benchmarks.forecasts quickstart algorithm=flow_grpo model.lora=null
    python -m benchmarks.forecasts my_recipe.yaml model.path=DIR model.dtype=bfloat16

The run on real tensors is two policy updates on this machine's CPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from burnish.config import load
from burnish.forecast.counter import LiveBytes, Peak
from burnish.forecast.fakes import Pretending
from burnish.forecast.flow import FlowHalf
from burnish.forecast.language import LanguageHalf
from burnish.forecast.phases import train_phases
from burnish.forecast.tiers import known_tiers
from burnish.tasks import assemble
from burnish.tasks.flow.assembly import FlowAssembly
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.utils.weights import without_weights

PATIENCE = 0.01  # seconds


class Patient(LiveBytes):
    """Counts what ranks hold that exchange tensors by gloo, whose threads let go of them some time after.

    No GPU does: memory is freed there in the order of its stream.
    """

    def _exchanged(self, func: Any, args: Any, kwargs: Any) -> None:
        super()._exchanged(func, args, kwargs)
        time.sleep(PATIENCE)


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
    counter = LiveBytes() if fake or ranks.size == 1 else Patient()
    pretending = Pretending() if fake else None
    with ExitStack() as contexts:
        config = load(recipe, list(options))
        if pretending is not None:
            contexts.enter_context(known_tiers(config, counter, shared=ranks.size > 1))
        if fake or drawn:
            contexts.enter_context(without_weights())
        if pretending is not None:
            contexts.enter_context(pretending.active())
        contexts.enter_context(counter)
        assembly = assemble(config, ranks)
        flow = isinstance(assembly, FlowAssembly)
        half = FlowHalf(assembly, counter) if flow else LanguageHalf(assembly, counter, pretending)
        train_phases(assembly, counter, half, samples=True, brief=fake or not flow, primed=fake)
    return counter.peaks


def main() -> None:
    recipe, *options = sys.argv[1:] or ["quickstart"]
    forecast, real = (peaks(recipe, options, fake=fake) for fake in (True, False))
    print("| phase | forecast, MiB | counted, MiB | difference |\n| --- | --- | --- | --- |")
    for name, peak in real.items():
        found = forecast[name].total
        print(f"| {name} | {found / 2**20:.1f} | {peak.total / 2**20:.1f} | {found / peak.total - 1:+.1%} |")


if __name__ == "__main__":
    main()
