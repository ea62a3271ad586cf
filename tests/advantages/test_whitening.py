"""Whitening over chosen tokens, and statistics of a whole run."""

import math

import pytest
import torch

from burnish.advantages.whitening import Moments, RunningMoments, moments, whitened
from tests.support.token_losses import mask_of, spoil


def present(values) -> torch.Tensor:
    return torch.ones(len(values), dtype=torch.bool)


@pytest.mark.parametrize("std", ["biased", "unbiased"])
@pytest.mark.parametrize("rubbish", [0.0, math.nan, math.inf, 1e30])
def test_chosen_tokens_have_mean_0_and_spread_1(rubbish, std):
    torch.manual_seed(0)
    mask = mask_of()
    white = whitened(spoil(torch.randn(mask.shape) * 3 + 7, mask, rubbish), mask, std)
    assert white[mask].mean().abs() < 1e-6
    torch.testing.assert_close(white[mask].std(correction=int(std == "unbiased")).item(), 1.0, rtol=1e-6, atol=1e-6)
    assert not white[~mask].any()


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6, 1 / 3])
@pytest.mark.parametrize("mask", [mask_of(), mask_of([1, 0, 0, 0]), mask_of([0, 0, 0, 0])])
@pytest.mark.parametrize("std", ["biased", "unbiased"])
def test_equal_values_are_nothing(value, mask, std):
    values = torch.full(mask.shape, value)
    assert not whitened(values, mask, std).any()
    assert whitened(values, mask, "none").abs().max() <= 1e-6 * abs(value)


def test_whitening_does_not_care_for_offset_and_scale():
    torch.manual_seed(0)
    mask, values = mask_of(), torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(
        whitened(values * 5 - 3, mask, "biased"), whitened(values, mask, "biased"), rtol=1e-6, atol=1e-6
    )


def test_moments_far_from_zero_are_exact():
    values = torch.tensor([1e6 + 1, 1e6 + 2, 1e6 + 3], dtype=torch.float64)
    known = moments(values[:1], present(values[:1])).merge(moments(values[1:], present(values[1:])))
    assert (known.count, known.mean) == (3, 1e6 + 2)
    assert known.squares == pytest.approx(2)


def test_a_constant_first_batch_does_not_explode():
    """Nor does one that differs by rounding only."""
    for noise in (0.0, 1e-9):
        running = RunningMoments()
        first = 0.1 + noise * torch.arange(4, dtype=torch.float64)
        running.update(first, present(first))
        assert running.normalise(first).abs().max() < 1e-6
        later = torch.tensor([0.1, 0.1, 1.0, 0.1])
        assert running.normalise(later).abs().max() < 1.0
        running.update(later, present(later))
        assert 1 < running.normalise(later).abs().max() < 4


def test_the_run_is_one_sample_however_it_came():
    torch.manual_seed(0)
    values = torch.randn(10) * 2 + 5
    running = RunningMoments()
    for part in values.split(3):
        running.update(part, present(part))
    torch.testing.assert_close(running.known.mean, values.double().mean().item())
    torch.testing.assert_close(running.known.std(unbiased=True), values.double().std().item())
    white = running.normalise(values)
    torch.testing.assert_close(white.std().item(), 1.0, rtol=1e-5, atol=1e-5)


def test_missing_rewards_and_rewards_that_are_no_number_are_left_out():
    running = RunningMoments()
    running.update(torch.tensor([1.0, 2.0, 50.0, math.nan]), torch.tensor([True, True, False, True]))
    assert (running.known.count, running.known.mean) == (2, 1.5)
    nothing = running.update(torch.tensor([math.nan]), torch.tensor([True]))
    assert nothing == Moments()
    assert running.known.count == 2


def test_statistics_go_on_where_they_were():
    running, other = RunningMoments(), RunningMoments()
    running.update(torch.tensor([1.0, 2.0, 4.0]), present(range(3)))
    other.load_state_dict(running.state_dict())
    for each in (running, other):
        each.update(torch.tensor([8.0, 3.0]), present(range(2)))
    assert running.known == other.known
