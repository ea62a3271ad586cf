"""The head by chunks, attention over segments, layouts of rows, norms and the cache."""

import copy
import itertools
from types import SimpleNamespace

import pytest
import torch

from burnish.language import attention
from burnish.language import logprobs as head
from burnish.language.algorithms.base import token_budget_batches
from burnish.language.attention import Plan, Segment, attend, has_kernel
from burnish.language.logprobs import costs_of
from burnish.language.model.capabilities import fitted_head
from burnish.language.model.forwards import settle_ties
from burnish.language.model.known import Known, upload
from tests.support.language_samples import encode_all, model_of, responses
from tests.support.pretend_gpu import PretendGpu

V, D, N = 37, 8, 23


def draw(seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, D, generator=generator, requires_grad=True)
    weight = torch.randn(V, D, generator=generator, requires_grad=True)
    return hidden, weight, torch.randint(3, V, (N,), generator=generator)


@pytest.mark.parametrize("chunk", [1, 4 * 5 * V])
@pytest.mark.parametrize("keep", [0, 10**6])
@pytest.mark.parametrize(("banned", "cap"), [([], None), ([0, 2], None), ([0, 2], 1.5)])
def test_chunks_change_neither_values_nor_gradients(monkeypatch, chunk, keep, banned, cap):
    monkeypatch.setattr(head, "CHUNK", chunk)
    monkeypatch.setattr(head, "KEEP", keep)
    banned = torch.tensor(banned, dtype=torch.long)
    hidden, weight, ids = draw()
    ours = head.chosen_scores(hidden, weight, ids, temperature=0.6, banned=banned, cap=cap)
    logits = hidden @ weight.T
    logits = logits if cap is None else cap * (logits / cap).tanh()
    # autograd gives NaN where 0 meets infinity, so the reference's banned logits are only far away
    logs = (logits / 0.6).index_fill(1, banned, -1e4).log_softmax(-1)
    theirs = logs.gather(1, ids[:, None])[:, 0], -(logs.exp() * logs).sum(-1)
    for other in (theirs, head.scores_of_logits(logits, ids, temperature=0.6, banned=banned)):
        torch.testing.assert_close(tuple(ours), tuple(other))
    outward = torch.randn(2, N, generator=torch.Generator().manual_seed(1))
    for parts in ([0, 1], [0], [1]):  # a loss may leave out either
        gradients = [
            torch.autograd.grad(sum((pair[i] * outward[i]).sum() for i in parts), [hidden, weight], retain_graph=True)
            for pair in (ours, theirs)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("scale", "cap", "dtype"), [(0.18, 2.0, torch.float32), (1.0, 30.0, torch.bfloat16)])
def test_scale_and_cap_are_told_from_logits(scale, cap, dtype):
    plain = 25 * draw()[0].detach()
    for logits, known in ((scale * plain, None), (cap * (scale * plain / cap).tanh(), cap)):
        _, found, before = min(fitted_head(logits.to(dtype).float(), plain, one) for one in (None, cap))
        assert (found, before or 0) == pytest.approx((scale, cap / scale if known else 0), rel=2e-3)


def test_nothing_as_large_as_tokens_times_vocabulary_is_kept(monkeypatch):
    monkeypatch.setattr(head, "CHUNK", 4 * 4 * V)
    monkeypatch.setattr(head, "KEEP", 0)
    hidden, weight, ids = draw()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        head.chosen_scores(hidden, weight, ids, temperature=1.0, banned=torch.tensor([], dtype=torch.long))
    assert kept
    assert max(kept) < N * V


def dense(segments, window=None):
    """The mask of all pairs, in which a segment sees its prefix and itself up to each of its tokens."""
    total = sum(segment.length for segment in segments)
    seen = torch.zeros(total, total, dtype=torch.bool)
    for segment in segments:
        own = list(range(segment.start, segment.start + segment.length))
        before = Segment(0, 0) if segment.prefix is None else segments[segment.prefix]
        line = [*range(before.start, before.start + before.length), *own]
        for place, token in enumerate(line):
            if token in own:
                seen[token, line[0 if window is None else max(place - window + 1, 0) : place + 1]] = True
    return seen


SEGMENTS = {
    "one": [Segment(0, 6)], "equal": [Segment(0, 4), Segment(4, 4), Segment(8, 4)],
    "ragged": [Segment(0, 3), Segment(3, 9), Segment(12, 1), Segment(13, 8), Segment(21, 2)],
    "tree": [Segment(0, 5), Segment(5, 3), Segment(8, 4, 0), Segment(12, 4, 1), Segment(16, 1, 0), Segment(17, 5, 1)],
}  # fmt: skip


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("name", SEGMENTS)
def test_attention_over_segments_is_attention_with_a_mask(name, window):
    segments, layer = SEGMENTS[name], SimpleNamespace(sliding_window=window)
    mask = dense(segments, window)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, len(mask), 8, generator=generator, requires_grad=True) for heads in (4, 2, 2))
    ours, _ = attend(layer, q, k, v, None, scaling=0.3, plan=Plan(segments))
    wide = [part.repeat_interleave(2, 1) for part in (k, v)]
    scores = (q @ wide[0].transpose(-1, -2) * 0.3).masked_fill(~mask, -torch.inf)
    theirs = (scores.softmax(-1) @ wide[1]).transpose(1, 2)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    outward = torch.randn(theirs.shape, generator=generator)
    gradients = [torch.autograd.grad((found * outward).sum(), (q, k, v)) for found in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("budget", [1, 30, 10**6])
def test_micro_batches_hold_to_their_budget_and_lose_nothing(budget):
    model = model_of("qwen2_5_vl")
    encoded = encode_all(model, "qwen2_5_vl")
    index = [2, 0, 1, 1, 0, 2, 2, 3]
    completion = responses(model, encoded, index, [5, 9, 2, 7, 1, 4, 4, 6])
    parts = list(token_budget_batches(completion, budget))
    assert sorted(row for part in parts for row in part) == list(range(len(index)))
    for part in parts:
        used = sum(encoded.lengths[prompt] for prompt in {index[row] for row in part})
        assert used + sum(int(completion.length[row]) for row in part) <= budget or len(part) == 1


def test_every_layout_costs_its_tokens_and_half_of_their_pairs():
    size = SimpleNamespace(parameters_per_token=1, attention_width=1)
    prompts = SimpleNamespace(index=torch.tensor([0, 0]), table=SimpleNamespace(lengths=[30]))
    found = costs_of(SimpleNamespace(prompts=prompts, length=torch.tensor([11, 21])), size)
    padded, packed, shared = 2 * (50 + 50**2), 90 + 40**2 + 50**2, 60 + 30**2 + 2 * (10 * 40 + 20 * 50)
    assert found == pytest.approx({"padded": padded, "packed": 1.02 * packed, "shared": 1.04 * shared})


@pytest.fixture
def gpu():
    """A pretended one, about which nothing is remembered."""
    with PretendGpu() as pretended:
        yield pretended
    has_kernel.cache_clear()


def drawn(tokens, *, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, tokens, 8, generator=generator).to(dtype) for heads in (4, 2, 2)]


def attended(tensors, layer, **more):
    given = [tensor.requires_grad_() for tensor in tensors]
    out, _ = attend(layer, *given, None, scaling=0.3, **more)
    (out.float() * torch.linspace(-1, 1, out.shape[1], device=out.device)[:, None, None]).sum().backward()
    return [value.detach().cpu().float() for value in (out, *(tensor.grad for tensor in given))]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", ["ragged", "tree"])
def test_on_a_gpu_one_call_has_the_numbers_of_padded_groups(name, window, gpu, monkeypatch):
    chosen, layer = SEGMENTS[name], SimpleNamespace(sliding_window=window)
    tokens = sum(segment.length for segment in chosen)
    theirs = attended(drawn(tokens), layer, plan=Plan(chosen))
    monkeypatch.setattr(attention, "F", None)  # padded groups would need it
    ours = attended([gpu.put(t) for t in drawn(tokens)], layer, plan=Plan(chosen, device="cuda:0"))
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_images_are_seen_whole(gpu):
    ends = torch.tensor([0, 4, 7, 16], dtype=torch.int32)
    q, k, v = (part.repeat_interleave(4 // part.shape[1], 1).float() for part in drawn(16))
    theirs = attended(drawn(16), torch.nn.Identity(), cu_seq_lens_q=ends)
    for a, b in itertools.pairwise(ends.tolist()):
        scores = q[:, :, a:b] @ k[:, :, a:b].transpose(-1, -2) * 0.3
        expected = (scores.softmax(-1) @ v[:, :, a:b]).transpose(1, 2)
        torch.testing.assert_close(theirs[0][:, a:b], expected, rtol=2e-2, atol=2e-2)
    ours = attended([gpu.put(t) for t in drawn(16)], torch.nn.Identity(), cu_seq_lens_q=gpu.put(ends))
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


KNOWN = {  # of grids [3, 3] and ids [7]: what a class computes of whole numbers, and whether the CPU still knows it
    "patches": (lambda grid, ids, x: torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0]).cumsum(0), True),
    "sizes": (lambda grid, ids, x: [tuple(map(int, one)) for one in grid] + (grid.prod(-1) // 4).tolist(), True),
    "longest": (lambda grid, ids, x: (grid[1:] - grid[:-1]).int().abs().max().item(), True),
    "view": (lambda grid, ids, x: x.new_ones(grid[0, 0], 7).view(-1, grid[0].sum() - 4), True),
    "slots": (lambda grid, ids, x: x[ids == 5], True),
    "filled": (lambda grid, ids, x: x.index_put((ids == 5,), x[0]) * (ids > 5)[:, None].expand_as(x), True),
    "written": (lambda grid, ids, x: (ids.add_(1), ids.tolist())[1], False),
    "first of equal": (lambda grid, ids, x: grid.view(-1).max(0).values.item(), False),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_whole_numbers_that_the_cpu_knows_are_not_waited_for(name, gpu):
    compute, is_known = KNOWN[name]
    grid, ids = torch.tensor([[1, 4, 6], [2, 4, 4], [1, 2, 8]]), torch.tensor([3, 5, 5, 7, 5, 2, 5])
    x = torch.arange(21.0).view(7, 3)
    theirs = compute(grid, ids.clone(), x)
    given = upload(grid, "cuda:0"), upload(ids, "cuda:0"), gpu.put(x)
    assert [isinstance(one, Known) for one in (given[0], copy.deepcopy(given[0]))] == [True, False]
    waits = gpu.count("sync")
    ours = compute(*given)
    assert (gpu.count("sync") == waits) == is_known, gpu.lines("sync")
    assert torch.equal(ours.cpu(), theirs) if isinstance(theirs, torch.Tensor) else ours == theirs


def test_an_indexer_takes_the_first_of_equal_scores():
    indexer = type("TinyIndexer", (torch.nn.Module,), {"forward": lambda self, scores: scores.topk(3, sorted=False)})()
    settle_ties(indexer)
    assert indexer(torch.tensor([[0.0, 1, 0, 0, 2, 0]] * 9)).indices.tolist() == [[4, 1, 0]] * 9
