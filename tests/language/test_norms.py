"""Norms with a short backward pass compute the same numbers, and only norms that do are given one."""

import copy

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRMSNorm

from burnish.forecast.fakes import Pretending
from burnish.language.norms import _agrees, shorten_backward


class HalfRMSNorm(LlamaRMSNorm):
    """Named as the others, but it computes something else."""

    def forward(self, hidden_states):
        return 0.5 * super().forward(hidden_states)


class Residual(nn.Module):
    """Two norms about a residual stream, whose gradient has parts from both."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.last, self.inner = kind(48, 1e-6), kind(48, 1e-6), nn.Linear(48, 48)

    def forward(self, x):
        x = x + self.inner(self.first(x))
        return self.last(x + self.inner(self.last(x)))


def learned(network, x, slope):
    x = x.clone().requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        out = network(x)
    return [out, *torch.autograd.grad(out, [x, *network.parameters()], slope)], len(set(kept))


def twins(kind):
    torch.manual_seed(0)
    plain = Residual(kind).eval()
    for weight in plain.parameters():
        nn.init.normal_(weight, 0.5)
    short = copy.deepcopy(plain)
    shorten_backward(short)
    return plain, short


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Qwen2_5_VLRMSNorm])
def test_the_short_way_has_the_same_bits_and_keeps_less(kind):
    plain, short = twins(kind)
    assert type(short.first) is not kind
    assert isinstance(short.first, kind)
    shorten_backward(again := copy.deepcopy(short))
    assert type(again.first) is type(short.first)
    x, slope = torch.randn(1, 77, 48), torch.randn(1, 77, 48)
    theirs, most = learned(plain, x, slope)
    ours, fewer = learned(short, x, slope)
    assert all(map(torch.equal, ours, theirs))
    assert fewer < most
    half = x.bfloat16()
    assert torch.equal(short.first(half), plain.first(half))


@pytest.mark.parametrize("kind", [HalfRMSNorm, GemmaRMSNorm])
def test_norms_that_compute_something_else_stay_as_they_are(kind):
    plain, short = twins(kind)
    assert type(short.first) is kind
    x = torch.randn(1, 5, 48)
    assert torch.equal(short(x), plain(x))


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: Pretending().active()], ids=["inference", "forecast"])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, HalfRMSNorm])
def test_what_was_found_in_a_mode_holds_after_it(kind, mode):
    _agrees.cache_clear()
    with mode():
        found = _agrees(kind, 1e-6)
    assert found is (kind is LlamaRMSNorm)
