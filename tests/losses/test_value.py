"""The critic's loss."""

import math

import pytest
import torch

from burnish.losses.value import value_loss
from tests.support.token_losses import assert_gradient, batch, mask_of, spoil


@pytest.mark.parametrize("clip", [None, 0.2])
def test_gradient_and_padding(clip):
    value, old, returns, mask = batch()
    assert_gradient(lambda at: value_loss(at, old, returns, mask, clip=clip)[0].sum(), value)
    clean = value_loss(value, old, returns, mask, clip=clip)
    spoilt = spoil(value, mask, math.nan).requires_grad_()
    got = value_loss(spoilt, spoil(old, mask, math.inf), spoil(returns, mask, math.nan), mask, clip=clip)
    torch.testing.assert_close(got, clean, rtol=0, atol=0)
    assert torch.autograd.grad(got[0].sum(), spoilt)[0].isfinite().all()


def test_what_moved_too_far_towards_the_return_has_no_gradient():
    value = torch.tensor([[1.0, -1.0, 0.1]], requires_grad=True)
    returns = torch.full((1, 3), 2.0)
    loss, values = value_loss(value, torch.zeros(1, 3), returns, mask_of([3], 3), clip=0.2)
    torch.testing.assert_close(loss, torch.tensor([[1.8**2, 3.0**2, 1.9**2]]) / 2)
    assert (torch.autograd.grad(loss.sum(), value)[0] != 0).tolist() == [[False, True, True]]
    assert values["critic/vf_clipfrac"].tolist() == [[1, 0, 0]]


def test_a_clip_of_nothing_is_refused():
    with pytest.raises(ValueError, match="null for none"):
        value_loss(*[torch.zeros(1, 1)] * 3, torch.ones(1, 1).bool(), clip=0.0)


def test_rounding_within_the_range_is_no_clipping():
    draw = torch.Generator().manual_seed(0)
    value, old, returns = (0.2 * torch.rand(8, 64, generator=draw) - 0.1 for _ in range(3))
    assert ((old + (value - old)) != value).any(), "the clipped value is rounded"
    _, values = value_loss(value, old, returns, torch.ones(8, 64).bool(), clip=0.2)
    assert not values["critic/vf_clipfrac"].any()
