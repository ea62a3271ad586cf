"""Several rewards: summed before or after each is compared within its group."""

import torch

from burnish.advantages.groups import group_advantages, normalise_each
from burnish.advantages.rewards import Rewards
from burnish.algorithms.base import advantages_of
from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.types.rollout import Prompt, Rollouts, Scores

WIDE = torch.tensor([[0.0, 10.0, 3.0], [1.0, 0.0, 5.0], [0.5, 0.0, 7.0], [0.2, 4.0, float("nan")]])
WEIGHTS = (1.0, 0.5, 0.0)


def scored() -> Rollouts:
    reward = WIDE[:, :2] @ torch.tensor(WEIGHTS[:2])
    scores = Scores(
        reward=reward, missing=torch.zeros(4, dtype=torch.bool), components=WIDE, names=("a", "b", "watched"),
        weights=WEIGHTS, notes=[""] * 4,
    )  # fmt: skip
    return Rollouts(
        prompts=[Prompt(text="")] * 4, group=torch.tensor([0, 0, 1, 1]), sample=torch.arange(4), scores=scores,
        update=1, version=0, seed=0,
    )  # fmt: skip


def advantages(algorithm, batch: Rollouts) -> torch.Tensor:
    return advantages_of(algorithm, Rewards.of(batch.scores, batch.group, 1)).advantage[:, 0]


def test_summed_first_the_widest_reward_rules_and_each_by_itself_it_does_not():
    batch = scored()
    summed = advantages(FlowGRPO(), batch)
    expected = group_advantages(batch.scores.reward, batch.group, batch.scores.missing)
    assert torch.equal(summed, expected)
    assert summed[0] > 0.9  # ten points of b outweigh the one point of a
    each = advantages(FlowGRPO(advantage_aggregation="each"), batch)
    a, b = (group_advantages(WIDE[:, k], batch.group, batch.scores.missing) for k in range(2))
    torch.testing.assert_close(each, a + 0.5 * b)
    assert each[0] < 0


def test_gdpo_brings_the_sum_to_mean_0_and_std_1_with_the_algorithms_own_scale():
    batch = scored()
    for algorithm in (FlowGRPO(advantage_aggregation="gdpo"), DiffusionNFT(advantage_aggregation="gdpo")):
        advantage = advantages(algorithm, batch)
        expected = normalise_each(
            WIDE, WEIGHTS, batch.group, batch.scores.missing, scale=algorithm.advantage_std, whiten=True
        )
        assert torch.equal(advantage, expected)
        assert abs(float(advantage.mean())) < 1e-6
        torch.testing.assert_close(advantage.std(correction=0), torch.tensor(1.0), rtol=1e-3, atol=0)


def test_a_watched_reward_that_is_missing_changes_nothing():
    batch = scored()
    known = scored()
    known.scores.components = torch.where(WIDE.isnan(), 1.0, WIDE)
    algorithm = FlowGRPO(advantage_aggregation="each")
    assert torch.equal(advantages(algorithm, batch), advantages(algorithm, known))
