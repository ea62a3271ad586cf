"""Segments of any length in one kernel call: on a pretended GPU the numbers of padded groups, and no masks."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from burnish.language import attention, segments
from burnish.language.attention import Plan, attend
from burnish.language.segments import Segment, missing, say_once
from tests.support.pretend_gpu import PretendGpu

SEGMENTS = {
    "ragged": [Segment(0, 3), Segment(3, 9), Segment(12, 1), Segment(13, 8), Segment(21, 2)],
    "tree": [Segment(0, 5), Segment(5, 3), Segment(8, 4, 0), Segment(12, 4, 1), Segment(16, 1, 0), Segment(17, 5, 1)],
}


@pytest.fixture(autouse=True)
def asked_anew():
    yield
    missing.cache_clear()  # about a GPU that was pretended
    say_once.cache_clear()


def drawn(tokens, *, dtype=torch.bfloat16):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, tokens, 8, generator=draw).to(dtype) for heads in (4, 2, 2)]


def attended(tensors, layer, **more):
    """Outputs and gradients, on whatever device the tensors lie."""
    given = [tensor.requires_grad_() for tensor in tensors]
    out, _ = attend(layer, *given, None, scaling=0.3, **more)
    (out.float() * torch.linspace(-1, 1, out.shape[1], device=out.device)[:, None, None]).sum().backward()
    return [value.detach().cpu().float() for value in (out, *(tensor.grad for tensor in given))]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", SEGMENTS)
def test_one_call_has_the_numbers_of_padded_groups(name, window, monkeypatch):
    chosen, layer = SEGMENTS[name], SimpleNamespace(sliding_window=window)
    tokens = sum(segment.length for segment in chosen)
    theirs = attended(drawn(tokens), layer, plan=Plan.of(chosen))
    with monkeypatch.context() as patch, PretendGpu() as gpu:
        patch.setattr(attention, "F", None)  # padded groups would need it
        ours = attended([gpu.put(t) for t in drawn(tokens)], layer, plan=Plan.of(chosen, device="cuda:0"))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-2, atol=2e-2)


def test_images_need_no_plan_that_stays():
    ends = torch.tensor([0, 4, 7, 16], dtype=torch.int32)
    theirs = attended(drawn(16), torch.nn.Identity(), cu_seq_lens_q=ends)
    with PretendGpu() as gpu:
        upon = gpu.put(ends)
        for _ in range(3):
            ours = attended([gpu.put(t) for t in drawn(16)], torch.nn.Identity(), cu_seq_lens_q=upon)
        assert gpu.count("to host") - 12 == 1, "their boundaries are read once for all layers"
        assert len(attention._PLANS) == 2
        del upon
    del ends
    assert not len(attention._PLANS)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-2, atol=2e-2)


def test_images_of_unlike_size_take_no_mask_of_all_pairs():
    plan = Plan.of([Segment(0, 1000), Segment(1000, 900), Segment(1900, 999)], causal=False)
    masks = [bucket.mask for bucket in plan.groups().buckets if bucket.mask is not None]
    assert masks
    assert sum(mask.numel() for mask in masks) <= 3 * 1000


def test_the_mask_of_one_call_is_bounded(monkeypatch):
    monkeypatch.setattr(attention, "PAIRS", 300)
    chosen = [Segment(0, 10), Segment(10, 9), *(Segment(19 + 10 * n, 10, n % 2) for n in range(6))]
    masks = [bucket.mask for bucket in Plan.of(chosen).groups().buckets if bucket.mask is not None]
    assert [tuple(mask.shape) for mask in masks] == [(2, 1, 10, 20)] * 3


def test_masks_are_made_once_and_shared_by_prefixes_of_one_length():
    chosen = [Segment(0, 10), Segment(10, 10), *(Segment(20 + 10 * n, 10, n % 2) for n in range(6))]
    groups = Plan.of(chosen).groups()
    shared = next(bucket for bucket in groups.buckets if bucket.mask is not None)
    assert tuple(shared.mask.shape) == (1, 1, 10, 20)
    assert shared.additive(torch.float32) is shared.additive(torch.float32)
    assert groups.order is None, "outputs need no sorting where segments follow one another"


def test_the_other_way_is_said_once_and_has_the_same_numbers(caplog):
    chosen, layer = SEGMENTS["tree"], SimpleNamespace(sliding_window=None)
    tensors = drawn(22, dtype=torch.float32)
    theirs = attended([t.clone() for t in tensors], layer, plan=Plan.of(chosen))
    with caplog.at_level(logging.INFO), PretendGpu() as gpu:
        plan = Plan.of(chosen, device="cuda:0")
        for _ in range(2):
            ours = attended([gpu.put(t) for t in tensors], layer, plan=plan)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    said = [record.message for record in caplog.records if "padded groups" in record.message]
    assert said == [
        "packed sequences are attended in padded groups, which is slower and takes masks: there is a kernel for half "
        "precision only (model.dtype=bfloat16)"
    ]


@pytest.mark.parametrize(
    ("shape", "dtype", "dropout", "why"),
    [
        ((1, 2, 3, 8), torch.float32, 0.0, "half precision"),
        ((1, 2, 3, 12), torch.bfloat16, 0.0, "12 wide"),
        ((1, 2, 3, 264), torch.bfloat16, 0.0, "264 wide"),
        ((1, 2, 3, 8), torch.bfloat16, 0.1, "dropout"),
        ((1, 2, 3, 8), torch.float16, 0.0, ""),
    ],
)
def test_what_the_kernel_cannot_take_is_named(shape, dtype, dropout, why):
    with PretendGpu() as gpu:
        found = segments.unsupported(gpu.put(torch.zeros(shape, dtype=dtype)), dropout)
    assert why in found if why else not found
    assert "CUDA only" in segments.unsupported(torch.zeros(shape, dtype=dtype), dropout)
