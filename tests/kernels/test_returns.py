"""Rewards in time: returns, where rewards stand, whitening, and which samples are compared."""

import math

import pytest
import torch

from burnish.rl import advantages
from burnish.rl.preference import pairs, select_best
from tests.conformance import case, cases, labels
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
    advantage, target = advantages.gae(
        spoil(rewards, mask, rubbish), spoil(values, mask, rubbish), mask, gamma=gamma, lam=lam
    )
    for row, chosen in enumerate(mask):
        expected = by_definition(rewards[row][chosen].tolist(), values[row][chosen].tolist(), gamma, lam)
        torch.testing.assert_close(advantage[row][chosen], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(target[mask], (advantage + values)[mask])
    assert not advantage[~mask].any()
    assert not target[~mask].any()


TURNS = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()


def test_rewards_stand_on_the_last_chosen_token_of_a_response_or_a_step():
    """Step 1 of the second sample has no chosen token; step numbers of other tokens are not read."""
    placed = advantages.place_reward(torch.tensor([1.0, 2.0, 3.0]), TURNS)
    assert placed.tolist() == [[0, 0, 0, 1, 0], [0, 0, 2, 0, 0], [0] * 5]
    step = torch.tensor([[0, 0, 0, 1, 99], [-5, 0, 0, 1, 1], [0, 0, 0, 1, 1]])
    placed = advantages.place_step_rewards(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), step, TURNS)
    assert placed.tolist() == [[0, 1, 0, 2, 0], [0, 0, 3, 0, 0], [0] * 5]
    mask = torch.tensor([[1, 1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 0, 1]]).bool()
    assert advantages.turn_numbers(mask).tolist() == [[0, 0, 0, 1, 0, 0, 2], [0] * 7, [0, 0, 0, 0, 0, 0, 1]]


def test_clipping_counts_what_was_outside_before():
    values = torch.tensor([[-3.0, 0.5, 3.0], [1.0, 9.0, math.nan]])
    mask = mask_of([3, 1], 3)
    clipped, fraction = advantages.clip_values(values, -1.0, 1.0, mask)
    assert clipped.tolist() == [[-1, 0.5, 1], [1, 0, 0]]
    assert fraction == pytest.approx(2 / 4)
    assert advantages.clip_values(clipped, -1.0, 1.0, mask)[1] == 0
    assert advantages.clip_values(values, -1.0, 1.0, mask & False)[1] == 0


def present(values) -> torch.Tensor:
    return torch.ones(len(values), dtype=torch.bool)


@pytest.mark.parametrize("std", ["biased", "unbiased"])
@pytest.mark.parametrize("rubbish", [0.0, math.nan, math.inf, 1e30])
def test_chosen_tokens_have_mean_0_and_spread_1(rubbish, std):
    torch.manual_seed(0)
    mask = mask_of()
    white = advantages.whitened(spoil(torch.randn(mask.shape) * 3 + 7, mask, rubbish), mask, std)
    assert white[mask].mean().abs() < 1e-6
    torch.testing.assert_close(white[mask].std(correction=int(std == "unbiased")).item(), 1.0, rtol=1e-6, atol=1e-6)
    assert not white[~mask].any()


@pytest.mark.parametrize("value", [0.1, -1e6])
@pytest.mark.parametrize("std", ["biased", "unbiased"])
def test_equal_values_are_nothing(value, std):
    for lengths in ([5, 3, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]):
        assert not advantages.whitened(torch.full((4, 5), value), mask_of(lengths), std).any()


def test_a_constant_first_batch_does_not_explode():
    """Nor does one that differs by rounding only."""
    for noise in (0.0, 1e-9):
        running = advantages.RunningMoments()
        first = 0.1 + noise * torch.arange(4, dtype=torch.float64)
        running.update(first, present(first))
        assert running.normalise(first).abs().max() < 1e-6
        later = torch.tensor([0.1, 0.1, 1.0, 0.1])
        assert running.normalise(later).abs().max() < 1.0
        running.update(later, present(later))
        assert 1 < running.normalise(later).abs().max() < 4


def test_missing_rewards_and_rewards_that_are_no_number_are_left_out():
    running = advantages.RunningMoments()
    running.update(torch.tensor([1.0, 2.0, 50.0, math.nan]), torch.tensor([True, True, False, True]))
    assert (running.known.count, running.known.mean) == (2, 1.5)
    nothing = running.update(torch.tensor([math.nan]), torch.tensor([True]))
    assert nothing == advantages.Moments()
    assert running.known.count == 2


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    reward = torch.randint(5, (30,), generator=g).float()
    return reward, torch.randint(6, (30,), generator=g), torch.rand(30, generator=g) < 0.3


@pytest.mark.parametrize("c", cases("credit", "dpo/pairs/"), ids=lambda c: c.id)
def test_pairs_of_verl_omni(c):
    reward = torch.tensor(c.inputs["scores"])
    found = pairs(reward, labels(c.inputs["uids"]), torch.zeros(len(reward)).bool())
    assert torch.stack(found, 1).flatten().tolist() == c.expected["indices"]


def test_equal_rewards_make_no_pair_and_of_equal_ones_the_first_wins_and_the_last_loses():
    reward, group = torch.tensor([0.3, 0.3, 1.0, 0.9]), torch.tensor([0, 0, 1, 1])
    winners, losers = pairs(reward, group, torch.zeros(4).bool())
    assert (winners.tolist(), losers.tolist()) == ([2], [3])
    winners, losers = pairs(torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.zeros(4).long(), torch.zeros(4).bool())
    assert (winners.tolist(), losers.tolist()) == ([1], [3])


def test_best_against_worst_of_flow_grpo():
    """Where all rewards of a prompt are equal it makes up a winner; here they make no pair."""
    c = case("credit", "advantage/flow_grpo_type_dpo")
    reward, group = torch.tensor(c.inputs["rewards"]), labels(c.inputs["prompts"])
    expected = torch.tensor(c.expected["advantages"])
    constant = advantages.group_advantages(reward, group, torch.zeros(9).bool()) == 0
    assert c.inputs["prompts"] == ["a", "b", "a", "c", "b", "a", "c", "b", "c"]
    assert constant.tolist() == [name == "c" for name in c.inputs["prompts"]]
    winners, losers = pairs(reward, group, torch.zeros(9).bool())
    sign = torch.zeros(9).index_fill(0, winners, 1.0).index_fill(0, losers, -1.0)
    c.close(sign, expected.masked_fill(constant, 0.0))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("keep", [2, 3, 4])
def test_the_best_and_the_worst_are_kept(seed, keep):
    reward, group, missing = batch(seed)
    rows = select_best(torch.where(missing, torch.nan, reward), group, missing, keep, worst=True)
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert not missing[rows].any()
    for number in group.unique():
        value = reward[(group == number) & ~missing].sort(descending=True).values
        kept = reward[rows[group[rows] == number]].sort(descending=True).values
        if len(value) <= keep:
            assert torch.equal(kept, value)
        else:
            assert torch.equal(kept, torch.cat([value[: keep - keep // 2], value[-(keep // 2) :]]))
