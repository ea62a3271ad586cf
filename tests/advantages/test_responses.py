"""Advantages within groups: closed forms, groups that say nothing, missing rewards."""

import pytest
import torch
from burnish.advantages.responses import cpgd_advantages, dynamic_sampling, group_advantage, remax_advantage

KINDS = ["grpo", "dr_grpo", "rloo", "reinforce_baseline"]
REWARD = torch.tensor([1.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.3, 0.9, 5.0])
GROUP = torch.tensor([7, 7, 7, 2, 2, 2, 9, 9, 4])  # one that differs, one of equal rewards, one pair, one alone
MISSING = torch.zeros(9, dtype=torch.bool)


def advantages(kind: str, missing=MISSING) -> torch.Tensor:
    return group_advantage(REWARD, GROUP, missing, kind)


def test_closed_forms():
    torch.testing.assert_close(advantages("dr_grpo")[:3], torch.tensor([2 / 3, -1 / 3, -1 / 3]))
    torch.testing.assert_close(advantages("rloo")[:3], torch.tensor([1.0, -0.5, -0.5]))
    torch.testing.assert_close(advantages("rloo")[6:8], torch.tensor([-0.6, 0.6]))
    torch.testing.assert_close(advantages("grpo")[:3], torch.tensor([2.0, -1.0, -1.0]) / 3**0.5, rtol=1e-5, atol=1e-5)
    assert advantages("reinforce_baseline").equal(advantages("dr_grpo"))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_rewards_and_a_group_of_one_say_exactly_nothing(kind):
    assert not advantages(kind)[[3, 4, 5, 8]].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_reward_is_as_if_the_sample_were_not_there(kind):
    missing = torch.zeros(9, dtype=torch.bool)
    missing[[1, 6]] = True
    spoilt = REWARD.masked_fill(missing, torch.nan)
    got = group_advantage(spoilt, GROUP, missing, kind)
    there = ~missing
    torch.testing.assert_close(got[there], group_advantage(REWARD[there], GROUP[there], MISSING[there], kind))
    assert not got[missing].any()


@pytest.mark.parametrize("kind", KINDS)
def test_order_does_not_matter(kind):
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    got = group_advantage(REWARD[order], GROUP[order], MISSING, kind)
    torch.testing.assert_close(got, advantages(kind)[order])


def test_remax_compares_with_the_greedy_response():
    missing = torch.tensor([False, False, True])
    greedy = torch.tensor([0.5, 1.0, torch.nan])
    assert remax_advantage(torch.tensor([1.0, 1.0, 1.0]), greedy, missing).tolist() == [0.5, 0, 0]


def test_groups_without_signal_do_not_thin_out_the_others():
    """Two of four groups differ: clip_filter doubles, up to its limit."""
    equal = cpgd_advantages(REWARD, GROUP, MISSING, "equal")
    torch.testing.assert_close(cpgd_advantages(REWARD, GROUP, MISSING, "clip_filter"), 2 * equal)
    torch.testing.assert_close(cpgd_advantages(REWARD, GROUP, MISSING, "clip_filter", clip=1.5), 1.5 * equal)
    gone = GROUP == 4  # a group of which nothing is known is none
    torch.testing.assert_close(cpgd_advantages(REWARD, GROUP, gone, "clip_filter"), 1.5 * equal)


def test_cpgd_is_not_nothing():
    got = cpgd_advantages(REWARD, GROUP, MISSING)
    torch.testing.assert_close(got[:3], torch.tensor([2.0, -1.0, -1.0]) / 2**0.5, rtol=1e-4, atol=1e-4)


def test_dynamic_sampling_keeps_groups_whose_rewards_differ():
    assert dynamic_sampling(REWARD, GROUP, MISSING).tolist() == [True] * 3 + [False] * 3 + [True] * 2 + [False]


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_are_dropped_whatever_they_are(value):
    reward = torch.full((7,), value)
    assert not dynamic_sampling(reward, torch.zeros(7, dtype=torch.long), torch.zeros(7, dtype=torch.bool)).any()


def test_a_group_that_only_a_missing_reward_makes_differ_is_dropped():
    reward, missing = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([False, False, True])
    assert not dynamic_sampling(reward, torch.zeros(3, dtype=torch.long), missing).any()
    assert not dynamic_sampling(reward, torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.bool)).any()
