"""Log-probs of responses are those of transformers' own forward, in every layout and architecture, in any turn."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from burnish.language.decoders import decode
from burnish.language.logprobs import response_logprobs, response_states
from burnish.language.sampling import Sampling
from burnish.types.batch import Gathered
from burnish.types.completion import Encoded, Features
from tests.support.games import Shows, play, prompts
from tests.support.language_samples import encode_all, model_at, model_of, responses, their_logits, theirs_of, trimmed
from tests.support.tiny_language import FAMILIES, SEEING, chat, noise_image, tiny_language

LAYOUTS = ["padded", "packed", "shared"]
TIGHT = {"rtol": 0, "atol": 1e-5}


def batch(family):
    model = model_of(family)
    encoded = encode_all(model, family)
    index = [row for row in range(len(encoded)) for _ in range(3)]
    return model, responses(model, encoded, index, [(5, 1, 9)[row % 3] + row // 3 for row in range(len(index))])


def scored_by_transformers(family, model, network, completion, temperature):
    """Logits of every response by their own forward, one response at a time, and scaled log-probs of all tokens."""
    logits, logprobs = [], []
    for row, length in enumerate(completion.length.tolist()):
        prompt = int(completion.prompts.index[row])
        with torch.no_grad():
            logits.append(their_logits(family, network, completion.prompts.table, prompt, completion.ids[row, :length]))
        logprobs.append((logits[-1] / temperature).index_fill(1, model.banned, -torch.inf).log_softmax(-1))
    return logits, logprobs


def chosen(logprobs, completion):
    found = torch.zeros(completion.ids.shape)
    for row, logs in enumerate(logprobs):
        found[row, : len(logs)] = logs.gather(1, completion.ids[row, : len(logs), None])[:, 0]
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_and_scores_are_those_of_transformers(family, layout):
    model, completion = batch(family)
    with torch.no_grad():
        ours = response_logprobs(model, model.network, completion, temperature=0.7, layout=layout)
        states = response_states(model, model.network, completion, layout=layout)
        mine = (states.hidden @ model.head(model.network).weight.T).split(completion.length.tolist())
    logits, logprobs = scored_by_transformers(family, model, theirs_of(family), completion, 0.7)
    torch.testing.assert_close(list(mine), logits, **TIGHT)
    torch.testing.assert_close(ours.logprob, chosen(logprobs, completion), **TIGHT)
    for row, logs in enumerate(logprobs):
        entropy = torch.distributions.Categorical(logits=logs.clamp_min(-1e9)).entropy()
        torch.testing.assert_close(ours.entropy[row, : len(logs)], entropy, **TIGHT)


def gradients(model, completion, layout, weights):
    network = model.network
    network.requires_grad_(True).zero_grad()
    try:
        scores = response_logprobs(model, network, completion, temperature=0.7, layout=layout)
        ((scores.logprob + 0.3 * scores.entropy) * weights).sum().backward()
        return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    finally:
        network.requires_grad_(False).zero_grad()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_do_not_depend_on_the_layout(family):
    model, completion = batch(family)
    weights = torch.randn(completion.ids.shape, generator=torch.Generator().manual_seed(1))
    plain, *others = (gradients(model, completion, layout, weights) for layout in LAYOUTS)
    assert any("visual" in name or "vision" in name for name in plain) == ("vl" in family)
    for other in others:
        assert other.keys() == plain.keys()
        for name, gradient in plain.items():
            scale = max(float(gradient.abs().max()), 1.0)
            torch.testing.assert_close(other[name] / scale, gradient / scale, **TIGHT, msg=name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_responses_and_masked_samples_make_no_nan_and_no_gradient(layout):
    model = model_of("qwen2_5_vl")
    completion = responses(model, encode_all(model, "qwen2_5_vl"), [0, 1, 1, 2], [0, 3, 0, 4])
    completion.mask[3] = False
    scores = response_logprobs(model, model.network, completion, temperature=1.0, layout=layout)
    assert scores.logprob.isfinite().all()
    assert (scores.logprob != 0).sum(1).tolist() == [0, 3, 0, 0]
    nothing = completion.select([0, 2])
    assert not any(g.any() for g in gradients(model, nothing, layout, torch.ones(nothing.ids.shape)).values())


CASES = yaml.safe_load(Path(__file__).with_name("windows.yaml").read_text())


@pytest.mark.parametrize("case", CASES)
def test_architectures_and_windows_are_sampled_and_scored_as_transformers_does(case):
    family, more = CASES[case]
    folder = tiny_language(Path(tempfile.mkdtemp(prefix="burnish-")), family, **more)
    kind = AutoModelForImageTextToText if family in SEEING else AutoModelForCausalLM
    theirs = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model = model_at(folder)
    parts = [("Tell me how you are.",), ("Hi", "you")]
    parts += [("What is ", noise_image(0), "?")] if family in SEEING else []
    encoded = Encoded.cat([model.encode(*chat(*some)) for some in parts])
    index = [row for row in range(len(encoded)) for _ in range(2)]
    sampled = decode(
        model, model.network, encoded, index, range(len(index)), Sampling(max_new_tokens=9, temperature=0.8)
    )
    made_up = responses(model, encoded, index, [(9, 3)[place % 2] for place in range(len(index))])
    for completion in (sampled, made_up):
        wanted = chosen(scored_by_transformers(family, model, theirs, completion, 0.8)[1], completion)
        for layout in LAYOUTS:
            with torch.no_grad():
                ours = response_logprobs(model, model.network, completion, temperature=0.8, layout=layout)
            torch.testing.assert_close(ours.logprob, wanted, **TIGHT)
        if completion is sampled:
            torch.testing.assert_close(sampled.logprob, wanted, **TIGHT)


@pytest.mark.parametrize("family", SEEING)
def test_of_a_conversation_the_trainer_sees_what_the_sampler_saw(family):
    """Pixels of the environment included, and what it says is never learned from."""
    model = model_of(family)
    completion = trimmed(play(Shows(turns=2), prompts(family), family=family, n=1)[0].select([0]))
    prompt = completion.prompts.rows()
    both, lengths = [prompt.features[0], completion.features[0]], [prompt.lengths[0], len(completion.ids[0])]
    table = replace(prompt, features=[Features.joined(both, lengths)])
    shown = replace(completion, prompts=Gathered(table=table, index=torch.tensor([0])))
    theirs = chosen(scored_by_transformers(family, model, theirs_of(family), shown, 0.9)[1], shown)
    assert 0 < completion.mask.sum() < completion.mask.numel()
    for layout in LAYOUTS:
        scores = response_logprobs(model, model.network, completion, temperature=0.9, layout=layout)
        for known in (completion.logprob, theirs.where(completion.mask, 0)):
            torch.testing.assert_close(scores.logprob, known, **TIGHT)
        assert not scores.entropy[~completion.mask].any()
