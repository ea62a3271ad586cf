"""In bfloat16, sampler and trainer are as near to each other as two forward passes of transformers or diffusers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from burnish import random
from burnish.algorithms.base import in_parts
from burnish.algorithms.flow_grpo import FlowGRPO
from burnish.algorithms.language.grpo import GRPO
from burnish.language.decoding import decode
from burnish.language.head import chosen_scores
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.models.language.loading import load_language_model
from burnish.models.lora import add_adapters
from burnish.options import LoraOptions, ModelOptions
from tests.algorithms.language.tokens import Bench as LanguageBench
from tests.language.samples import encode_all, folder_of
from tests.tiny_language import SEEING
from tests.workers.test_training import WINDOW
from tests.workers.test_training import Bench as FlowBench

ROWS, LONGEST = 24, 16
LORA = LoraOptions(rank=4)
LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
FAMILIES = ["llama", "qwen2", "qwen3_moe", "qwen3_vl", "qwen2_5_vl"]
LAYOUTS = ("padded", "packed", "shared")
# sampler against trainer over transformers' cached forward against its uncached one, mean differences of log-probs of
# the same responses: measured 1.00 on a CPU for every model here with padded and packed rows, and at most 0.82 with
# shared prompts
OF_THEIRS = 1.25
SEEN = 0.01  # of responses to pictures, where the vision tower's rounding comes first: measured up to 0.006


def biased(network):
    """Qwen2.5's biases of queries and keys are tens to hundreds, far above everything that they are added to."""
    for name, parameter in network.named_parameters():
        if name.endswith(("q_proj.bias", "k_proj.bias", "q_proj.base_layer.bias", "k_proj.base_layer.bias")):
            parameter.data.mul_(100)


def learned(parameters, step):
    """Move adapters as one step of Adam would."""
    draw = torch.Generator().manual_seed(1)
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.data += (step * torch.randn(parameter.shape, generator=draw).sign()).to(parameter)


def load(family, device, *, lora, bias=False):
    options = ModelOptions(path=str(folder_of(family)), device=device, dtype="bfloat16", lora=LORA if lora else None)
    model = load_language_model(options)
    if bias:
        biased(model.network)
    if lora:
        add_adapters(model.network, LoraOptions(rank=4, targets=LORA_TARGETS), ["policy"], seed=0)
    return model


def sampled(model, encoded):
    index = [row for row in range(len(encoded)) for _ in range(ROWS // len(encoded))]
    keys = [random.key(0, "rollout", row) for row in range(len(index))]
    return decode(model, model.network, encoded, index, keys, Sampling(max_new_tokens=LONGEST))


def apart(model, completion):
    """How far the trainer's log-probs are from the sampler's, on average, in every layout."""
    with torch.no_grad():
        scores = [
            response_logprobs(model, model.network, completion, temperature=1.0, layout=layout).logprob.cpu()
            for layout in LAYOUTS
        ]
    return [float((one - completion.logprob)[completion.mask].abs().mean()) for one in scores]


def theirs_apart(model, family, completion, device, *, lora, bias):
    """How far transformers' cached forward is from its uncached one on the same responses, on average."""
    kind = AutoModelForImageTextToText if family in SEEING else AutoModelForCausalLM
    resting = torch.bfloat16 if lora else torch.float32
    network = kind.from_pretrained(folder_of(family), dtype=resting, attn_implementation="sdpa").eval().to(device)
    if bias:
        biased(network)
    differences = []
    for row in range(len(completion)):
        prompt, answer = completion.prompts.table.ids[0].to(device), completion.ids[row].to(device)
        ids = torch.cat([prompt, answer])[None]
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=not lora):
            whole = network.model(input_ids=ids).last_hidden_state[0, len(prompt) - 1 : -1]
            out = network.model(input_ids=ids[:, : len(prompt)], use_cache=True)
            steps = [out.last_hidden_state[0, -1]]
            for token in answer[:-1]:
                out = network.model(input_ids=token.view(1, 1), past_key_values=out.past_key_values, use_cache=True)
                steps.append(out.last_hidden_state[0, -1])
        with torch.no_grad():
            one, other = (
                chosen_scores(states, model.head(network), answer, temperature=1.0, banned=model.banned.to(device))[0]
                for states in (whole, torch.stack(steps))
            )
        differences.append((one - other)[completion.mask[row].to(device)])
    return float(torch.cat(differences).abs().mean())


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("family", [*FAMILIES, "qwen2 with biases"])
def test_sampler_and_trainer_are_as_near_as_transformers_is_to_itself(family, lora, device):
    family, _, bias = family.partition(" with ")
    model = load(family, device, lora=lora, bias=bool(bias))
    completion = sampled(model, encode_all(model, family).select([0]))
    floor = theirs_apart(model, family, completion, device, lora=lora, bias=bool(bias))
    assert floor > 1e-4, "the two forwards round alike, so this shows nothing"
    for layout, mine in zip(LAYOUTS, apart(model, completion), strict=True):
        assert mine < OF_THEIRS * floor, (layout, mine, floor)


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family in SEEING])
def test_sampler_and_trainer_see_the_same_pictures(family, lora, device):
    model = load(family, device, lora=lora)
    assert max(apart(model, sampled(model, encode_all(model, family)))) < SEEN


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe"])
def test_adapters_that_have_learned_a_little_are_sampled_with_as_they_are_trained(family, device):
    bench = LanguageBench(GRPO(), lora=True, family=family, dtype="bfloat16", device=device)
    model, network = bench.roles.model, bench.roles.model.network
    encoded = encode_all(model, family)
    before = apart(model, sampled(model, encoded))
    learned(network.parameters(), 3e-4)
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    with bench.roles.sampling() as sampling:
        after = apart(model, sampled(model, encoded))
        assert all(torch.equal(value, weights[name]) for name, value in sampling.state_dict().items())
    assert max(after) < 1.25 * max(before)


@pytest.mark.parametrize("kind", ["lora", "full"])
@pytest.mark.parametrize("family", ["sd3", "flux"])
def test_a_generators_trainer_repeats_its_samplers_log_probs(family, kind, device, request):
    bench = FlowBench(
        request.getfixturevalue(family), FlowGRPO(window=WINDOW), lora=kind == "lora", dtype="bfloat16", device=device,
        length=16, height=8, width=8,
    )  # fmt: skip
    learned(bench.roles.parameters().values(), 3e-4)
    steps = bench.collect().trace.steps()

    def logprob(part):
        return bench.algorithm._step(part, bench.roles.policy).logprob(part.next_state, "gaussian")

    again = in_parts(logprob, steps, bench.roles)
    if device == "cpu":
        assert torch.equal(again, steps.logprob)
    # kernels of a GPU depend on the number of rows; a clip range is 1e-4
    torch.testing.assert_close(again, steps.logprob, rtol=0, atol=2e-5)


def test_folding_adapters_in_bfloat16_samples_with_another_policy(sd3, device):
    bench = FlowBench(sd3, FlowGRPO(window=WINDOW), dtype="bfloat16", device=device, merge_lora=True)
    learned(bench.roles.parameters().values(), 3e-4)
    steps = bench.collect().trace.steps()

    def logprob(part):
        return bench.algorithm._step(part, bench.roles.policy).logprob(part.next_state, "gaussian")

    difference = (in_parts(logprob, steps, bench.roles) - steps.logprob).abs().max()
    assert difference > 1e-5, "folding rounds nothing: rollout.merge_lora=auto could fold"


def test_auto_folds_where_weights_rest_in_float32(sd3, monkeypatch):
    for dtype, folds in (("float32", True), ("bfloat16", False)):
        bench = FlowBench(sd3, FlowGRPO(window=WINDOW), dtype=dtype, device="cpu")
        seen, sampling = [], bench.roles.sampling

        def watched(name, *, merge, seen=seen, sampling=sampling):
            seen.append(merge)
            return sampling(name, merge=merge)

        monkeypatch.setattr(bench.roles, "sampling", watched)
        bench.collect()
        assert seen == [folds]
