"""Forecasts beside counted runs on real tensors."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.forecasts import Aside
from burnish.config import load
from burnish.forecast.counter import LiveBytes, Peak
from burnish.forecast.fakes import Pretending
from burnish.forecast.flow import FlowHalf
from burnish.forecast.phases import LOAD, train_phases
from burnish.forecast.quantized import stored_in_fewer_bits
from burnish.forecast.ranks import pretend_ranks
from burnish.tasks import assemble
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.utils.weights import without_weights
from tests.support.rank_runs import together


def counted(recipe: str, options: Sequence[str], ranks: Ranks = SINGLE_RANK) -> dict[str, Peak]:
    """The peaks of a run on real tensors, all of it done."""
    counter, config = Aside(), load(recipe, list(options))
    ranks = ranks.in_contexts(config.sharding.context_parallel)
    with counter:
        assembly = assemble(config, ranks)
        train_phases(assembly, counter, FlowHalf(assembly, counter), samples=True, brief=False)
    return counter.peaks


def counted_on(size: int, recipe: str, options: Sequence[str], folder: Path) -> dict[str, Peak]:
    """The same on the first of several ranks, in processes of their own."""
    if size == 1:
        return counted(recipe, options)

    def work(ranks: Ranks, _: Path) -> dict[str, Peak]:
        return counted(recipe, options, ranks)

    first: dict[str, Peak] = together(work, folder, size=size)[0]
    return first


def foretold(size: int, recipe: str, options: Sequence[str]) -> dict[str, Peak]:
    """The peaks of the same run on fake tensors, on one of ``size`` ranks, with CPUs' choices of precision."""
    counter, config = LiveBytes(), load(recipe, list(options))
    with ExitStack() as contexts:
        ranks = contexts.enter_context(pretend_ranks(size)).in_contexts(config.sharding.context_parallel)
        contexts.enter_context(without_weights())
        contexts.enter_context(stored_in_fewer_bits())
        contexts.enter_context(Pretending().active())
        contexts.enter_context(counter)
        assembly = assemble(config, ranks)
        train_phases(assembly, counter, FlowHalf(assembly, counter), samples=True)
    return counter.peaks


def differences(real: dict[str, Peak], forecast: dict[str, Peak]) -> dict[str, float]:
    """Relative errors of a forecast by phase.

    While a network is loaded on a CPU, its mapped files count as its memory, which they are not on a GPU.
    """
    assert real.keys() == forecast.keys()
    return {name: forecast[name].total / peak.total - 1 for name, peak in real.items() if name != LOAD}


def wires(phases: dict[str, Peak]) -> dict[str, int]:
    """Bytes that come from other ranks, by phase."""
    return {name: peak.wire for name, peak in phases.items()}
