"""Which samples are compared: reference pairs, and what must hold for any rewards."""

import pytest
import torch

from burnish.advantages.groups import group_advantages
from burnish.advantages.selection import pairs, select_best_worst
from tests.conformance import case, cases, labels


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    reward = torch.randint(5, (30,), generator=g).float()
    return reward, torch.randint(6, (30,), generator=g), torch.rand(30, generator=g) < 0.3


@pytest.mark.parametrize("c", cases("credit", "dpo/pairs/"), ids=lambda c: c.id)
def test_pairs_of_verl_omni(c):
    reward = torch.tensor(c.inputs["scores"])
    found = pairs(reward, labels(c.inputs["uids"]), torch.zeros(len(reward)).bool())
    assert torch.stack(found, 1).flatten().tolist() == c.expected["indices"]


@pytest.mark.parametrize("seed", range(5))
def test_a_pair_is_the_best_and_the_worst_of_its_group(seed):
    reward, group, missing = batch(seed)
    winners, losers = pairs(torch.where(missing, torch.nan, reward), group, missing)
    assert torch.equal(group[winners], group[losers])
    assert not missing[torch.cat([winners, losers])].any()
    assert len(group[winners].unique()) == len(winners)
    for number in group.unique():
        value = reward[(group == number) & ~missing]
        chosen = group[winners] == number
        if len(value) < 2 or value.max() == value.min():
            assert not chosen.any()
        else:
            assert reward[winners[chosen]].tolist() == [value.max()]
            assert reward[losers[chosen]].tolist() == [value.min()]


def test_equal_rewards_make_no_pair():
    reward, group = torch.tensor([0.3, 0.3, 1.0, 0.9]), torch.tensor([0, 0, 1, 1])
    winners, losers = pairs(reward, group, torch.zeros(4).bool())
    assert (winners.tolist(), losers.tolist()) == ([2], [3])
    assert pairs(reward, group, torch.zeros(4).bool(), margin=0.2)[0].shape == (0,)


def test_of_equal_ones_the_first_wins_and_the_last_loses():
    winners, losers = pairs(torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.zeros(4).long(), torch.zeros(4).bool())
    assert (winners.tolist(), losers.tolist()) == ([1], [3])


def test_best_against_worst_of_flow_grpo():
    """Where all rewards of a prompt are equal it makes up a winner; here they make no pair."""
    c = case("credit", "advantage/flow_grpo_type_dpo")
    reward, group = torch.tensor(c.inputs["rewards"]), labels(c.inputs["prompts"])
    expected = torch.tensor(c.expected["advantages"])
    constant = group_advantages(reward, group, torch.zeros(9).bool()) == 0
    assert c.inputs["prompts"] == ["a", "b", "a", "c", "b", "a", "c", "b", "c"]
    assert constant.tolist() == [name == "c" for name in c.inputs["prompts"]]
    winners, losers = pairs(reward, group, torch.zeros(9).bool())
    sign = torch.zeros(9).index_fill(0, winners, 1.0).index_fill(0, losers, -1.0)
    c.close(sign, expected.masked_fill(constant, 0.0))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("keep", [2, 3, 4])
def test_the_best_and_the_worst_are_kept(seed, keep):
    reward, group, missing = batch(seed)
    rows = select_best_worst(torch.where(missing, torch.nan, reward), group, missing, keep)
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert not missing[rows].any()
    for number in group.unique():
        value = reward[(group == number) & ~missing].sort(descending=True).values
        kept = reward[rows[group[rows] == number]].sort(descending=True).values
        if len(value) <= keep:
            assert torch.equal(kept, value)
        else:
            assert torch.equal(kept, torch.cat([value[: keep - keep // 2], value[-(keep // 2) :]]))


def test_one_sample_is_no_selection():
    with pytest.raises(ValueError, match="keep is 1"):
        select_best_worst(torch.zeros(2), torch.zeros(2).long(), torch.zeros(2).bool(), 1)


def test_nothing_present():
    reward, group, missing = torch.full((4,), torch.nan), torch.tensor([0, 0, 1, 1]), torch.ones(4).bool()
    assert pairs(reward, group, missing)[0].shape == (0,)
    assert select_best_worst(reward, group, missing, 2).shape == (0,)
