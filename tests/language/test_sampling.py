"""Filters keep what they say, and every option of sampling does what it says."""

from __future__ import annotations

import pytest
import torch

from burnish.language.decoding import decode
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import BLOCK, Sampling, choose, keep_likely, penalise, uniforms
from burnish.utils import random
from tests.support.language_samples import encode_all, model_of
from tests.support.tiny_language import chat

LOGITS = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).log()


def kept(**sampling):
    return keep_likely(LOGITS, Sampling(max_new_tokens=1, **sampling)).isfinite()[0].tolist()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, 5),
        ({"top_k": 2}, 2),
        ({"top_k": 9}, 5),
        ({"top_p": 0.6}, 2),
        ({"top_p": 0.1}, 1),
        ({"top_p": 1e-300}, 1),
        ({"min_p": 0.25}, 3),
        ({"top_k": 3, "top_p": 0.8}, 2),
    ],
)
def test_filters_keep_the_likeliest(sampling, expected):
    assert kept(**sampling) == [place < expected for place in range(5)]


def test_a_penalty_makes_seen_tokens_less_likely_whatever_their_sign():
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    seen = torch.tensor([[True, True, False]])
    assert penalise(logits, seen, 2.0).tolist() == [[1.0, -4.0, 1.0]]


def test_choices_follow_the_weights():
    draws = 20000
    weights = torch.tensor([[0.0, 3.0, 1.0, 0.0, 6.0, 0.0]])
    uniform = torch.from_numpy(uniforms([7], draws)[0])
    tokens = choose(weights.expand(draws, -1), uniform)
    frequency = torch.bincount(tokens, minlength=6) / draws
    torch.testing.assert_close(frequency, weights[0] / 10, rtol=0, atol=0.01)
    assert frequency[weights[0] == 0].sum() == 0
    edges = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert choose(weights.expand(2, -1), edges).tolist() == [1, 4]


def test_choices_from_a_large_vocabulary_are_those_of_one_sum():
    draw = torch.Generator().manual_seed(0)
    weights = torch.rand(200, 3 * BLOCK + 7, generator=draw) * (torch.rand(200, 3 * BLOCK + 7, generator=draw) < 0.3)
    uniform = torch.rand(200, generator=draw, dtype=torch.float64)
    whole = weights.double().cumsum(-1)
    expected = torch.searchsorted(whole, (uniform * whole[:, -1])[:, None], right=True)[:, 0]
    # sums of blocks are rounded to float32, so that a number beside an edge may fall on its other side
    assert (choose(weights, uniform) == expected).float().mean() > 0.99
    edges = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    places = weights[0].nonzero().flatten()
    assert choose(weights[:1].expand(2, -1), edges).tolist() == [int(places[0]), int(places[-1])]


WRONG = [
    ("max_new_tokens", 0), ("min_new_tokens", 5), ("temperature", -1.0), ("first_temperature", 0.0), ("top_k", -1),
    ("top_p", 0.0), ("min_p", 1.0), ("repetition_penalty", 0.0), ("stop", ("",)), ("temperature", float("nan")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_values_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        Sampling(**({"max_new_tokens": 4} | {name: value}))


def sample(n=64, family="llama", limits=None, **sampling):
    model = model_of(family)
    encoded = encode_all(model, family).select([0])
    keys = [random.key(1, place) for place in range(n)]
    options = Sampling(**({"max_new_tokens": 10} | sampling))
    return model, decode(model, model.network, encoded, [0] * n, keys, options, limits=limits)


def test_the_temperature_is_that_of_the_reported_log_probs_and_filters_are_not():
    model, completion = sample(temperature=0.5, top_k=3, repetition_penalty=1.3, top_p=0.9, min_p=0.05)
    scores = response_logprobs(model, model.network, completion, temperature=0.5)
    torch.testing.assert_close(scores.logprob, completion.logprob, rtol=0, atol=1e-5)


def test_the_first_token_is_hot_and_its_log_prob_is_not():
    model, plain = sample(temperature=0.2)
    _, fire = sample(temperature=0.2, first_temperature=10.0)
    assert len(fire.ids[:, 0].unique()) > 2 * len(plain.ids[:, 0].unique())
    scores = response_logprobs(model, model.network, fire, temperature=0.2)
    torch.testing.assert_close(scores.logprob, fire.logprob, rtol=1e-5, atol=1e-5)


def test_a_hot_first_token_then_the_likeliest():
    _, greedy = sample(n=1, temperature=0)
    _, fire = sample(temperature=0, first_temperature=3.0)
    assert len(fire.ids[:, 0].unique()) > 5
    same = (fire.ids[:, 0] == greedy.ids[0, 0]).nonzero().flatten()
    assert len(same)
    assert (fire.ids[same] == greedy.ids).all()


def test_placeholders_are_never_written():
    model = model_of("qwen2_5_vl")
    head = model.head(model.network).weight
    with torch.no_grad():
        kept = head[model.banned].clone()
        norm = model.text(model.network).norm.weight
        before = norm.clone()
        norm.zero_()  # every token is as likely as any other
        try:
            _, completion = sample(n=300, family="qwen2_5_vl", max_new_tokens=20)
        finally:
            norm.copy_(before)
            head[model.banned] = kept
    written = completion.ids[completion.mask]
    assert len(written) > 3000
    assert len(written.unique()) > 200
    assert not torch.isin(written, model.banned).any()
    every = len(head) - len(model.banned)
    torch.testing.assert_close(completion.logprob[completion.mask].exp(), torch.full((len(written),), 1 / every))


def test_responses_end_at_a_stop_id_or_at_the_limit():
    model, completion = sample(n=400, max_new_tokens=30)
    last = completion.ids.gather(1, completion.length[:, None] - 1)[:, 0]
    assert 0 < completion.finished.sum() < 400
    assert (torch.isin(last, torch.tensor(model.stop)) == completion.finished).all()
    assert (completion.length[~completion.finished] == 30).all()
    inner = completion.mask & (torch.arange(completion.ids.shape[1]) < completion.length[:, None] - 1)
    assert not torch.isin(completion.ids[inner], torch.tensor(model.stop)).any()


def test_a_response_is_at_least_as_long_as_asked():
    _, free = sample(n=400, max_new_tokens=12)
    _, held = sample(n=400, max_new_tokens=12, min_new_tokens=6)
    assert (free.length <= 6).any()
    assert held.length.min() > 6


def test_a_stop_string_ends_a_response_and_stays():
    model, free = sample(n=200, max_new_tokens=12)
    texts = [model.decode(free.ids[row, : free.length[row]].tolist()) for row in range(200)]
    text = max("ABCDEFGH", key="".join(texts).count)
    _, cut = sample(n=200, max_new_tokens=12, stop=("never", text))
    hit = 0
    for row in range(200):
        whole, part = texts[row], model.decode(cut.ids[row, : cut.length[row]].tolist())
        if text in whole:
            hit += 1
            assert part.endswith(text)
            assert whole.startswith(part)
            assert cut.finished[row]
        else:
            assert part == whole
    assert hit


def test_every_row_may_have_a_limit_of_its_own():
    _, whole = sample(n=5)
    _, cut = sample(n=5, limits=[0, 2, 10, 1, 7])
    for row, limit in enumerate([0, 2, 10, 1, 7]):
        length = min(limit, int(whole.length[row]))
        assert cut.length[row] == length
        assert (cut.ids[row, :length] == whole.ids[row, :length]).all()
    assert not cut.finished[0]


def test_no_rows_are_no_error():
    model, completion = sample(n=0)
    assert len(completion) == 0
    assert completion.ids.shape == (0, 0)
    assert model.encode(*chat("Hi"))
