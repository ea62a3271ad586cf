"""Decoding: filters, options, numbers by key, and that the trainer sees what was sampled."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from burnish.language.batches import repeated, response_stats
from burnish.language.decoders import decode
from burnish.language.engine import LanguageEngine, ResponseJob, so_far
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling, choose, keep_likely, penalise, philox, uniforms
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, PartialResponse
from burnish.types.prompt import Prompt
from tests.support.games import Roles
from tests.support.language_samples import encode_all, model_of, their_logits, theirs_of, trimmed
from tests.support.tiny_language import FAMILIES

# the known answers that come with Random123: counter, key, result
ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "answer"), ANSWERS)
def test_philox_gives_the_published_answers(counter, key, answer):
    words = [[np.array([int(word, 16)], dtype=np.uint64) for word in text.split()] for text in (key, counter)]
    assert " ".join(f"{int(word[0]):08x}" for word in philox(*words)) == answer


def test_a_number_depends_on_its_key_and_place_alone():
    keys = [7, 1, 99, 12, 5]
    table = uniforms(keys, 9)
    assert (uniforms(keys[3:4], 9) == table[3:4]).all()
    assert (uniforms(keys[::-1], 7) == table[::-1, :7]).all()
    many = uniforms(list(range(200)), 200)
    assert len(np.unique(many)) == many.size
    assert 0 <= many.min() < many.max() < 1
    assert abs(many.mean() - 0.5) < 0.005
    assert abs(many.var() - 1 / 12) < 0.002


@pytest.mark.parametrize(("sampling", "expected"), [
    ({}, 5), ({"top_k": 2}, 2), ({"top_k": 9}, 5), ({"top_p": 0.6}, 2), ({"top_p": 0.1}, 1), ({"top_p": 1e-300}, 1),
    ({"min_p": 0.25}, 3), ({"top_k": 3, "top_p": 0.8}, 2),
])  # fmt: skip
def test_filters_keep_the_likeliest(sampling, expected):
    logits = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).log()
    kept = keep_likely(logits, Sampling(max_new_tokens=1, **sampling)).isfinite()[0]
    assert kept.tolist() == [place < expected for place in range(5)]


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
    assert choose(weights.roll(1).expand(2, -1), edges).tolist() == [2, 5]
    large, spots = torch.rand(3000, generator=torch.Generator().manual_seed(0)), uniform[:500]  # by blocks of tokens
    large[:700] = large[-300:] = 0.0
    sums = large.double().cumsum(0)
    found = choose(large.expand(500, -1), spots)
    assert torch.equal(found, torch.searchsorted(sums, spots * sums[-1], right=True))
    assert choose(large.expand(2, -1), edges).tolist() == [700, 2699]


def answers(family, *, n=4, batch_size=64, rows=None, on_ended=None, limits=None, partial=(), **sampling):
    model = model_of(family)
    encoded = encode_all(model, family)
    rows = range(n * len(encoded)) if rows is None else rows
    index, keys = [row // n for row in rows], [1000 + row for row in rows]
    options = Sampling(**({"max_new_tokens": 8} | sampling))
    more = {"batch_size": batch_size, "on_ended": on_ended, "limits": limits, "partial": partial}
    return model, decode(model, model.network, encoded, index, keys, options, **more)


def sample(n=64, family="llama", **sampling):
    return answers(family, n=n, rows=range(n), **({"max_new_tokens": 10} | sampling))


def test_the_temperature_alone_is_that_of_the_reported_log_probs():
    filters = {"top_k": 3, "repetition_penalty": 1.3, "top_p": 0.9, "min_p": 0.05}
    for sampling in (filters, {"first_temperature": 10.0}):
        model, completion = sample(temperature=0.5, **sampling)
        scores = response_logprobs(model, model.network, completion, temperature=0.5)
        torch.testing.assert_close(scores.logprob, completion.logprob, rtol=0, atol=1e-5)


def test_a_hot_first_token_then_the_likeliest():
    _, greedy = sample(n=1, temperature=0)
    _, fire = sample(n=400, temperature=0, first_temperature=3.0)
    assert len(fire.ids[:, 0].unique()) > 5
    same = (fire.ids[:, 0] == greedy.ids[0, 0]).nonzero().flatten()
    assert len(same)
    assert (fire.ids[same] == greedy.ids).all()


def test_placeholders_are_never_written(monkeypatch):
    model = model_of("qwen2_5_vl")
    norm = model.text(model.network).norm.weight
    monkeypatch.setattr(norm, "data", torch.zeros_like(norm))  # every token is as likely as any other
    _, completion = sample(n=300, family="qwen2_5_vl", max_new_tokens=20)
    written = completion.ids[completion.mask]
    assert len(written) > 3000
    assert len(written.unique()) > 200
    assert not torch.isin(written, model.banned).any()
    every = len(model.head(model.network).weight) - len(model.banned)
    torch.testing.assert_close(completion.logprob[completion.mask].exp(), torch.full((len(written),), 1 / every))


def test_responses_end_at_a_stop_id_or_at_the_limit():
    model, completion = sample(n=400, max_new_tokens=30)
    last = completion.ids.gather(1, completion.length[:, None] - 1)[:, 0]
    assert 0 < completion.finished.sum() < 400
    assert (torch.isin(last, torch.tensor(model.stop)) == completion.finished).all()
    assert (completion.length[~completion.finished] == 30).all()
    held = sample(n=400, max_new_tokens=12, min_new_tokens=6)[1]
    assert held.length.min() > 6 >= completion.length.min(), "it is at least as long as asked"
    inner = completion.mask & (torch.arange(completion.ids.shape[1]) < completion.length[:, None] - 1)
    assert not torch.isin(completion.ids[inner], torch.tensor(model.stop)).any()


def test_a_stop_string_ends_a_response_and_stays():
    model, free = sample(n=200, max_new_tokens=12)
    texts = [model.decode(free.ids[row, : free.length[row]].tolist()) for row in range(200)]
    text = max("ABCDEFGH", key="".join(texts).count)
    _, cut = sample(n=200, max_new_tokens=12, stop=("never", text))
    for row, whole in enumerate(texts):
        part = model.decode(cut.ids[row, : cut.length[row]].tolist())
        assert part == (whole[: len(part)] if text in whole else whole)
        assert part.endswith(text) == (text in whole)
        assert cut.finished[row] or text not in whole
    assert cut.length.min() == 1, "the first token ends it, too"
    assert sample(n=200, max_new_tokens=12, stop=(text,), min_new_tokens=6)[1].length.min() == 6


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_decoding_is_that_of_transformers(family):
    _, completion = answers(family, n=1, temperature=0, max_new_tokens=6)
    for row, length in enumerate(completion.length.tolist()):
        response = completion.ids[row, :length]
        with torch.no_grad():
            logits = their_logits(family, theirs_of(family), completion.prompts.table, row, response)
        logits[:, model_of(family).banned] = -torch.inf
        assert logits.argmax(-1).tolist() == response.tolist()
        expected = logits.log_softmax(-1).gather(1, response[:, None])[:, 0]
        torch.testing.assert_close(completion.logprob[row, :length], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama"])
def test_a_sample_does_not_depend_on_its_neighbours_nor_on_a_longer_limit(family):
    _, together = answers(family)
    _, few_at_once = answers(family, batch_size=3)
    order = [5, 0, 2] if len(together) > 4 else [3, 0]
    _, some = answers(family, rows=order)
    for other, expected in ((few_at_once, together), (some, trimmed(together.select(order)))):
        assert other.ids.tolist() == expected.ids.tolist()
        assert other.finished.tolist() == expected.finished.tolist()
        torch.testing.assert_close(other.logprob, expected.logprob, rtol=0, atol=1e-5)
    assert torch.equal(answers(family, max_new_tokens=3)[1].ids, together.ids[:, :3])


@pytest.mark.parametrize(("family", "known"), [
    ("qwen2_5_vl", {}), ("llama", {}), ("llama", {"fast": False, "cache": "padded"}),
    ("qwen2", {"fast": False, "cache": "none"}),
])  # fmt: skip
def test_a_response_that_goes_on_is_the_one_that_never_stopped(family, known, monkeypatch):
    monkeypatch.setattr(model_of(family), "capabilities", replace(model_of(family).capabilities, **known))
    how = {"repetition_penalty": 1.3, "min_new_tokens": 2, "first_temperature": 3.0, "top_k": 9}
    model, free = answers(family, **how)
    cuts = [2 + row % 5 for row in range(len(free))]
    # some end before their cut, some with a string that it parts
    ends = [(row, cut - row % 2) for row, cut in enumerate(cuts) if row % 3 == 0]
    how["stop"] = tuple({model.decode(free.ids[row, end - 1 : end + 1].tolist()) for row, end in ends} - {"\ufffd" * 2})
    _, whole = answers(family, **how)
    _, part = answers(family, limits=cuts, **how)
    partial = [so_far(PartialResponse(update=1), part, row, 2) for row in range(len(whole))]
    limits = [len(own.ids) if own.finished else 8 for own in partial]
    assert 0 < sum(own.finished for own in partial) < sum(limit == 8 for limit in limits)
    _, rest = answers(family, partial=partial, limits=limits, **how)
    assert (rest.ids.tolist(), rest.finished.tolist()) == (whole.ids.tolist(), whole.finished.tolist())
    torch.testing.assert_close(rest.logprob, whole.logprob, rtol=0, atol=1e-5)
    scores = response_logprobs(model, model.network, rest, temperature=1.0)
    torch.testing.assert_close(scores.logprob, rest.logprob, rtol=0, atol=1e-5)


def test_a_policy_that_computes_no_numbers_is_told(monkeypatch):
    weight = model_of("llama").network.get_output_embeddings().weight
    monkeypatch.setattr(weight, "data", torch.full_like(weight, torch.nan))
    with pytest.raises(Exception, match=r"optimizer\.lr"):
        answers("llama", n=1)


def test_a_prompt_that_leaves_no_positions_is_named():
    engine = LanguageEngine(Roles("llama"), batch_size=4, seed=0)
    asked = [Prompt(text="a b " * count, where=f"asked.jsonl:{count}") for count in (1, 999)]
    how = {"purpose": "rollout", "update": 1, "sampling": Sampling(max_new_tokens=8)}
    with pytest.raises(ValueError, match=r"asked\.jsonl:999.* positions"):
        engine.sample(ResponseJob.groups(asked, 1, **how))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama"])
def test_a_response_is_handed_over_when_it_ends(family):
    told, got = [], {}

    def take(rows, ids, finished):
        told.append(list(rows))
        got.update(zip(rows, zip(ids, finished, strict=True), strict=True))

    _, completion = answers(family, n=24, batch_size=5, max_new_tokens=40, temperature=1.5, on_ended=take)
    assert sorted(row for rows in told for row in rows) == list(range(len(completion)))
    assert len(told) > 2, "not all at once"
    for row, (ids, finished) in got.items():
        assert ids == completion.ids[row, completion.mask[row]].tolist()
        assert finished == bool(completion.finished[row])


def test_only_what_the_policy_chose_is_looked_at_and_runs_that_are_repeated():
    assert repeated([1, 2, 3]) == repeated([]) == repeated(range(50)) == 0.0
    assert repeated([1, 2, 3, 4] * 5) == pytest.approx(13 / 17)  # of 17 runs 4 differ
    encoded = Encoded(ids=[torch.tensor([5])], positions=[torch.tensor([[0]])], features=[None])
    trace = Completion.of_text(
        Gathered(table=encoded, index=torch.tensor([0])), torch.tensor([[3, 4, 5, 6]]), torch.tensor([4]), axes=1,
        logprob=torch.tensor([[-1.0, 0.0, -2.0, -3.0]]), finished=torch.tensor([False]),
    )  # fmt: skip
    trace.mask = torch.tensor([[True, False, True, True]])  # the second one is the environment's
    (found,) = response_stats(trace, ["8"])
    assert (found.length, found.truncated, found.repeated, found.surprisal) == (3, True, 0.0, 2.0)
    trace.mask = torch.zeros(1, 4, dtype=torch.bool)
    assert math.isnan(response_stats(trace, [""])[0].surprisal)
