"""Where samples wait until they are learned changes no number."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from burnish.config import load
from burnish.runtime.transfer import pack
from burnish.training.ranks import SINGLE_RANK
from burnish.types.columns import Column
from tests.support import rank_runs
from tests.support.factory import tiny_pipeline


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("waiting")
    tiny_pipeline(folder, vae=False)
    return folder / "pipeline"


@pytest.mark.parametrize("name", ["flow full", "flow lora", "nft lora", "tdm lora", "dpo pairs", "uphill"])
def test_samples_that_wait_elsewhere_teach_the_same(pipeline, name):
    found = []
    for wait in (lambda trace: trace, lambda trace: trace.put_away(), lambda trace: pack(trace.put_away()).unpack()):
        bench = rank_runs.RUNS[name](pipeline, SINGLE_RANK)
        scored = bench.collect()
        trace = wait(scored.trace)
        bench.train(scored=replace(scored, trace=trace))
        found.append(bench.weights())
    assert isinstance(trace.latents, Column), "and nothing is read before it is used"
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


def test_the_option_puts_states_away(pipeline):
    bench = rank_runs.RUNS["flow full"](pipeline, SINGLE_RANK)
    trace = bench.collect().trace
    away = trace.put_away()
    assert len(away.state.sources[0].tensor) < 2 * trace.time.numel(), "a state between two steps is kept once"
    assert load("quickstart", ["rollout.trajectories=host"]).rollout.trajectories == "host"
