"""Layouts, what they cost, and micro-batches by tokens; attention over segments is that of a dense mask."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from burnish.language.attention import Plan, attend
from burnish.language.cost import cheapest, estimate, token_budget_batches
from burnish.language.rows import Table, lay_out
from burnish.language.segments import Segment
from tests.support.language_samples import encode_all, model_of, responses

WIDE = SimpleNamespace(parameters_per_token=10**6, attention_width=1000)


def dense(segments):
    total = sum(segment.length for segment in segments)
    seen = torch.zeros(total, total, dtype=torch.bool)
    for segment in segments:
        own = slice(segment.start, segment.start + segment.length)
        seen[own, own] = torch.ones(segment.length, segment.length, dtype=torch.bool).tril()
        if segment.prefix is not None:
            before = segments[segment.prefix]
            seen[own, before.start : before.start + before.length] = True
    return seen


SEGMENTS = {
    "one": [Segment(0, 6)],
    "equal": [Segment(0, 4), Segment(4, 4), Segment(8, 4)],
    "ragged": [Segment(0, 3), Segment(3, 9), Segment(12, 1), Segment(13, 8), Segment(21, 2)],
    "tree": [Segment(0, 5), Segment(5, 3), Segment(8, 4, 0), Segment(12, 4, 1), Segment(16, 1, 0), Segment(17, 5, 1)],
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_attention_over_segments_is_attention_with_a_mask(name):
    segments = SEGMENTS[name]
    mask = dense(segments)
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, len(mask), 8, generator=draw, requires_grad=True) for heads in (4, 2, 2))
    ours, _ = attend(torch.nn.Identity(), q, k, v, None, scaling=0.3, plan=Plan.of(segments))
    wide = [part.repeat_interleave(2, 1) for part in (k, v)]
    scores = (q @ wide[0].transpose(-1, -2) * 0.3).masked_fill(~mask, -torch.inf)
    theirs = (scores.softmax(-1) @ wide[1]).transpose(1, 2)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    outward = torch.randn(theirs.shape, generator=draw)
    for mine, other in zip(*(torch.autograd.grad((o * outward).sum(), (q, k, v)) for o in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_images_are_seen_whole():
    ends = torch.tensor([0, 4, 7, 16])
    q, k, v = (torch.randn(1, 2, 16, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))
    ours, _ = attend(torch.nn.Identity(), q, k, v, None, scaling=0.3, cu_seq_lens_q=ends)
    for start, end in ((0, 4), (4, 7), (7, 16)):
        a, b, c = (part[:, :, start:end] for part in (q, k, v))
        theirs = ((a @ b.transpose(-1, -2) * 0.3).softmax(-1) @ c).transpose(1, 2)
        torch.testing.assert_close(ours[:, start:end], theirs)


def test_a_shared_prompt_lies_in_the_line_once():
    model = model_of("qwen2_5_vl")
    encoded = encode_all(model, "qwen2_5_vl")
    completion = responses(model, encoded, [1, 1, 1, 0], [4, 6, 1, 3])
    table = Table.of(completion, model.placeholders)
    prompts = encoded.lengths
    assert len(lay_out(table, "shared").source) == prompts[0] + prompts[1] + 3 + 5 + 0 + 2
    assert len(lay_out(table, "packed").source) == prompts[0] + 3 * prompts[1] + 3 + 5 + 0 + 2
    assert len(lay_out(table, "padded").source) == 4 * (prompts[1] + 5)
    for layout in ("shared", "packed", "padded"):
        rows = lay_out(table, layout)
        for row, places in enumerate(rows.predicts.split(completion.length.tolist())):
            # the state that predicts a token is that of the token before it
            first = table.prompt[table.owner[row]][-1]
            assert rows.source[places].tolist() == [first, *table.response[row][:-1]]


def test_the_cheapest_layout_shares_what_can_be_shared():
    costs = estimate([50] * 8, [12] * 8, [0] * 8, WIDE)
    assert costs["shared"] < 0.4 * costs["packed"]
    alone = estimate([50, 20], [12, 30], [0, 1], WIDE)
    assert alone["packed"] < alone["padded"]
    assert alone["packed"] < alone["shared"]
    even = estimate([50, 50], [12, 12], [0, 1], WIDE)
    assert min(even, key=even.get) == "padded"
    model = model_of("llama")
    encoded = encode_all(model, "llama")
    assert cheapest(Table.of(responses(model, encoded, [0] * 6, [5] * 6), model.placeholders), model) == "shared"


@pytest.mark.parametrize("budget", [1, 30, 60, 10**6])
def test_micro_batches_hold_to_their_budget_and_lose_nothing(budget):
    model = model_of("qwen2_5_vl")
    encoded = encode_all(model, "qwen2_5_vl")
    index = [2, 0, 1, 1, 0, 2, 2, 3]
    completion = responses(model, encoded, index, [5, 9, 2, 7, 1, 4, 4, 6])
    parts = list(token_budget_batches(completion, budget))
    assert sorted(row for part in parts for row in part) == list(range(len(index)))
    for part in parts:
        used = sum(encoded.lengths[prompt] for prompt in {index[row] for row in part})
        used += sum(int(completion.length[row]) for row in part)
        assert used <= budget or len(part) == 1
    if budget == 10**6:
        assert len(parts) == 1
        assert [index[row] for row in parts[0]] == [2, 2, 2, 0, 0, 1, 1, 3]
