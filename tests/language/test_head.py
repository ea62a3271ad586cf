"""The language head by chunks: the same numbers and gradients as by autograd, in less memory."""

from __future__ import annotations

import pytest
import torch

from burnish.language import head

V, D, N = 37, 8, 23


def draw(seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, D, generator=generator, requires_grad=True)
    weight = torch.randn(V, D, generator=generator, requires_grad=True)
    return hidden, weight, torch.randint(3, V, (N,), generator=generator)


def capped(logits, cap):
    return logits if cap is None else cap * (logits / cap).tanh()


def plainly(hidden, weight, ids, temperature, banned, cap=None):
    logits = capped(hidden @ weight.T, cap) / temperature
    logits = logits.index_fill(1, banned, -torch.inf)
    logs = logits.log_softmax(-1)
    entropy = -torch.where(logs.isinf(), 0.0, logs.exp() * logs).sum(-1)
    return logs.gather(1, ids[:, None])[:, 0], entropy


@pytest.mark.parametrize("chunk", [1, 4 * 5 * V, 10**6])
@pytest.mark.parametrize("keep", [0, 10**6])
@pytest.mark.parametrize("banned", [[], [0, 2]])
@pytest.mark.parametrize("cap", [None, 1.5])
def test_chunks_change_neither_values_nor_gradients(monkeypatch, chunk, keep, banned, cap):
    monkeypatch.setattr(head, "CHUNK", chunk)
    monkeypatch.setattr(head, "KEEP", keep)
    banned = torch.tensor(banned, dtype=torch.long)
    hidden, weight, ids = draw()
    ours = head.chosen_scores(hidden, weight, ids, temperature=0.6, banned=banned, cap=cap)
    logits = capped(hidden @ weight.T, cap)
    # autograd gives NaN where 0 meets infinity, so the reference's banned logits are only far away
    finite = logits / 0.6
    finite = torch.where(torch.isin(torch.arange(V), banned), torch.full_like(finite, -1e4), finite)
    logs = finite.log_softmax(-1)
    theirs = logs.gather(1, ids[:, None])[:, 0], -(logs.exp() * logs).sum(-1)
    exactly = plainly(hidden, weight, ids, 0.6, banned, cap)
    for pair in (exactly, head.scores_of_logits(logits, ids, temperature=0.6, banned=banned)):
        for mine, other in zip(ours, pair, strict=True):
            torch.testing.assert_close(mine, other)
    for mine, other, exact in zip(ours, theirs, exactly, strict=True):
        torch.testing.assert_close(mine, other)
        torch.testing.assert_close(mine, exact)
    outward = torch.randn(2, N, generator=torch.Generator().manual_seed(1))
    for parts in ([0, 1], [0], [1]):  # a loss may leave out either
        gradients = [
            torch.autograd.grad(sum((pair[i] * outward[i]).sum() for i in parts), [hidden, weight], retain_graph=True)
            for pair in (ours, theirs)
        ]
        for mine, other in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_nothing_as_large_as_tokens_times_vocabulary_is_kept(monkeypatch):
    monkeypatch.setattr(head, "CHUNK", 4 * 4 * V)
    monkeypatch.setattr(head, "KEEP", 0)
    hidden, weight, ids = draw()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        head.chosen_scores(hidden, weight, ids, temperature=1.0, banned=torch.tensor([], dtype=torch.long))
    assert kept
    assert max(kept) < N * V


def test_a_head_that_is_not_trained_costs_no_gradient():
    hidden, weight, ids = draw()
    logprob, _ = head.chosen_scores(
        hidden, weight.detach(), ids, temperature=1.0, banned=torch.tensor([], dtype=torch.long)
    )
    logprob.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_no_tokens_are_no_error():
    hidden, weight, ids = draw()
    logprob, entropy = head.chosen_scores(
        hidden[:0], weight, ids[:0], temperature=1.0, banned=torch.tensor([], dtype=torch.long)
    )
    assert logprob.shape == entropy.shape == (0,)
    (logprob.sum() + entropy.sum()).backward()
    assert not hidden.grad.any()


def test_a_gpu_gets_as_many_rows_as_keep_it_busy():
    vocabulary = 152_064
    rows = head.rows_at_once(vocabulary, torch.device("cuda"))
    assert 256 <= rows <= 512
    assert rows * vocabulary * 4 <= 2**28
    assert head.rows_at_once(vocabulary, torch.device("cpu")) == 27
    assert head.rows_at_once(10**9, torch.device("cuda")) == 1
