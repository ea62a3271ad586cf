"""A worker that only samples holds weights in bfloat16 where that moves no bit, and gets them in it."""

import pytest
import torch

from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.language.policy_gradient import GRPO
from burnish.models.placing import place, rest_frozen
from tests.support.flow_bench import WINDOW
from tests.support.flow_bench import Bench as FlowBench
from tests.support.forwards import learned, sampled
from tests.support.language_samples import encode_all
from tests.support.token_batches import Bench as LanguageBench


def bytes_of(network) -> int:
    return sum(weight.nbytes for weight in network.parameters())


def rest(model) -> None:
    """As a model that only samples is loaded."""
    rest_frozen(model.network, model.compute)
    place(model.network, model.device)


@pytest.mark.parametrize("family", ["qwen2", "qwen2_5_vl", "qwen3_moe", "llama"])
def test_a_language_model_samples_the_same(family, device):
    bench = LanguageBench(GRPO(), lora=False, family=family, dtype="bfloat16", device=device)
    model, network = bench.roles.model, bench.roles.model.network
    learned(network.parameters())
    encoded = encode_all(model, family)
    before, size = sampled(model, encoded), bytes_of(network)
    rest(bench.roles.model)
    after = sampled(model, encoded)
    assert torch.equal(before.ids, after.ids)
    assert torch.equal(before.logprob, after.logprob)
    assert bytes_of(network) < size
    assert {value.dtype for value in bench.roles.sampler_weights(full=True).values()} == {torch.float32, torch.bfloat16}


@pytest.mark.parametrize("family", ["sd3", "flux"])
def test_a_generator_samples_the_same(family, device, request):
    bench = FlowBench(
        request.getfixturevalue(family), FlowGRPO(window=WINDOW), lora=False, dtype="bfloat16", device=device,
        length=16, height=8, width=8,
    )  # fmt: skip
    learned(bench.roles.parameters().values())
    before, size = bench.collect().trace.steps(), bytes_of(bench.roles.model.network)
    rest(bench.roles.model)
    after = bench.collect().trace.steps()
    assert torch.equal(before.logprob, after.logprob)
    assert bytes_of(bench.roles.model.network) < 0.8 * size
