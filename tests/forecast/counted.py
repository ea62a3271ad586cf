"""Peaks of a run by phase: counted on real tensors, and foretold on fake ones."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from benchmarks.forecasts import Aside
from burnish.config import load
from burnish.forecast.counter import LiveBytes
from burnish.forecast.fakes import Pretending
from burnish.forecast.flow import FlowHalf
from burnish.forecast.language import LanguageHalf
from burnish.forecast.phases import train_phases
from burnish.forecast.quantized import stored_in_fewer_bits
from burnish.forecast.ranks import pretend_ranks
from burnish.forecast.tiers import known_tiers
from burnish.tasks import assemble
from burnish.training.ranks import SINGLE_RANK
from burnish.utils.weights import without_weights
from tests.support.rank_runs import together


def counted(recipe, options, ranks=SINGLE_RANK, folder=None):
    """Of a generator's run, all of it done."""
    counter, config = Aside(), load(recipe, list(options))
    ranks = ranks.in_contexts(config.sharding.context_parallel)
    with counter:
        assembly = assemble(config, ranks)
        train_phases(assembly, counter, FlowHalf(assembly, counter), samples=True, brief=False)
    return counter.peaks


def counted_on(size, recipe, options, folder):
    """The same on the first of several ranks, in processes of their own."""
    work = partial(counted, recipe, options)
    return work() if size == 1 else together(work, folder, size=size)[0]


def foretold(size, recipe, options):
    """Of the same run on one of ``size`` ranks, with CPUs' choices of precision."""
    counter, config = LiveBytes(), load(recipe, list(options))
    with ExitStack() as contexts:
        ranks = contexts.enter_context(pretend_ranks(size)).in_contexts(config.sharding.context_parallel)
        for context in (without_weights(), stored_in_fewer_bits(), Pretending().active(), counter):
            contexts.enter_context(context)
        assembly = assemble(config, ranks)
        train_phases(assembly, counter, FlowHalf(assembly, counter), samples=True)
    return counter.peaks


def language(options, ranks, folder, *, fake=False):
    """Of a language model's run, in folder/model."""
    size = ranks.size
    small = [
        f"model.path={folder / 'model'}", f"data.train_batch_size={2 * size}", "data.max_prompt_length=160",
        "rollout.max_new_tokens=48", "rollout.n=2", "rollout.batch_size=4", f"trainer.mini_batch_size={4 * size}",
        "trainer.micro_batch_tokens=416", "validation.every=null", "validation.before=false",
    ]  # fmt: skip
    own = {option.partition("=")[0] for option in options}
    config = load("qwen25_vl/grpo", [*(one for one in small if one.partition("=")[0] not in own), *options])
    pretending = Pretending() if fake else None
    with ExitStack() as stack:
        counter = LiveBytes() if fake else Aside()
        if pretending is not None:
            stack.enter_context(known_tiers(config, counter, shared=size > 1))
            stack.enter_context(pretending.active())
        stack.enter_context(without_weights())
        stack.enter_context(counter)
        assembly = assemble(config, ranks)
        half = LanguageHalf(assembly, counter, pretending)
        train_phases(assembly, counter, half, samples=True, primed=fake)
    return counter.peaks
