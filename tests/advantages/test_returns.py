"""Advantages and returns against their definitions, written as sums; several turns; nothing at all."""

import math

import pytest
import torch

from burnish.advantages.returns import gae, returns
from tests.support.token_losses import mask_of, spoil


def by_definition(rewards, values, gamma, lam):
    """Schulman et al. 2016, eq. 16, as a double sum over one row of chosen tokens."""
    length = len(rewards)
    following = [*values[1:], 0.0]
    surprise = [rewards[t] + gamma * following[t] - values[t] for t in range(length)]
    return [sum((gamma * lam) ** (k - t) * surprise[k] for k in range(t, length)) for t in range(length)]


def rows(mask):
    torch.manual_seed(0)
    return torch.randn(mask.shape, dtype=torch.float64), torch.randn(mask.shape, dtype=torch.float64)


@pytest.mark.parametrize("rubbish", [0.0, math.nan, math.inf])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.9, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("turns", [False, True])
def test_gae_is_its_definition_on_the_chosen_tokens(gamma, lam, turns, rubbish):
    """In several turns the environment's tokens take no time: what was chosen stands next to each other."""
    mask = mask_of()
    if turns:
        mask = torch.tensor([[1, 0, 0, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]]).bool()
    rewards, values = rows(mask)
    advantage, target = gae(spoil(rewards, mask, rubbish), spoil(values, mask, rubbish), mask, gamma=gamma, lam=lam)
    for row, chosen in enumerate(mask):
        expected = by_definition(rewards[row][chosen].tolist(), values[row][chosen].tolist(), gamma, lam)
        torch.testing.assert_close(advantage[row][chosen], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(target[mask], (advantage + values)[mask])
    assert not advantage[~mask].any()
    assert not target[~mask].any()


def test_a_perfect_critic_is_never_surprised():
    mask = mask_of([4], 4)
    rewards = torch.tensor([[0.0, 1.0, 0.0, 2.0]])
    advantage, target = gae(rewards, returns(rewards, mask, gamma=0.9), mask, gamma=0.9, lam=0.7)
    torch.testing.assert_close(advantage, torch.zeros_like(advantage))
    torch.testing.assert_close(target, torch.tensor([[2.358, 2.62, 1.8, 2.0]]))


def test_with_lambda_one_the_critic_is_only_a_baseline():
    mask = mask_of()
    rewards, values = rows(mask)
    advantage, target = gae(rewards, values, mask, gamma=0.9, lam=1.0)
    torch.testing.assert_close(target, returns(rewards, mask, gamma=0.9))
    torch.testing.assert_close(advantage[mask], (target - values)[mask])


def test_rows_do_not_see_each_other():
    mask = mask_of()
    rewards, values = rows(mask)
    whole = gae(rewards, values, mask, gamma=0.9, lam=0.95)
    for row in range(len(mask)):
        alone = gae(rewards[row : row + 1], values[row : row + 1], mask[row : row + 1], gamma=0.9, lam=0.95)
        torch.testing.assert_close(alone, tuple(part[row : row + 1] for part in whole), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_nothing_gives_nothing(shape):
    empty = torch.zeros(shape)
    for part in gae(empty, empty, empty.bool(), gamma=1.0, lam=1.0):
        assert part.shape == shape


def test_no_gradient_goes_through_credit():
    values = torch.zeros(1, 2, requires_grad=True)
    assert not any(part.requires_grad for part in gae(values, values, mask_of([2], 2), gamma=1.0, lam=1.0))
