"""What responses have earned: rewards where they count, clipped, with a KL and turns taken into account."""

import math
from dataclasses import replace

import pytest
import torch

from burnish.algorithms.base import advantages_of
from burnish.algorithms.language.policy_gradient import GRPO
from burnish.algorithms.language.ppo import PPO
from burnish.algorithms.language.presets import Reinforce, ReMax
from burnish.algorithms.language.shaping import shape
from tests.support.language_tables import annotated, judged
from tests.support.token_losses import mask_of, spoil


@pytest.mark.parametrize("rubbish", [math.nan, math.inf])
def test_a_kl_in_the_reward_is_taken_off_every_token(rubbish):
    torch.manual_seed(0)
    mask = mask_of()
    kl, reward = torch.randn(mask.shape), torch.tensor([5.0, -0.5, 1.0, 2.0])
    algorithm = PPO(kl={"route": "reward", "coef": 0.1}, reward_clip=1.0)
    rewards, coef, metrics = shape(algorithm, annotated(algorithm, judged(reward, mask), kl=spoil(kl, mask, rubbish)))
    sums = torch.tensor([1.0, -0.5, 0.0, 1.0]) - 0.1 * kl.masked_fill(~mask, 0).sum(1)
    torch.testing.assert_close(rewards.actions.sum(1), sums)
    torch.testing.assert_close(rewards.reward[mask.any(1)], sums[mask.any(1)])
    assert not rewards.actions[~mask].any()
    assert coef == 0.0  # nothing is left for the loss
    assert metrics["critic/rewards/clip_ratio"] == 0.5


def test_a_kl_in_the_loss_changes_no_reward():
    mask, reward = mask_of(), torch.tensor([5.0, -0.5, 1.0, 2.0])
    algorithm = GRPO(kl={"coef": 0.1})
    rewards, coef, _ = shape(algorithm, annotated(algorithm, judged(reward, mask), kl=torch.ones(mask.shape)))
    assert torch.equal(rewards.reward, reward)
    assert coef == 0.1


def test_a_reward_of_a_turn_counts_from_its_end_back_if_asked():
    mask = torch.tensor([[1, 1, 0, 1, 0]]).bool()
    scored = replace(judged(torch.tensor([3.0]), mask), turn_rewards=torch.tensor([[1.0, 0.5]]))
    for turns, expected in ((True, [[3.0, 3.0, 0, 2.0, 0]]), (False, [[3.0, 3.0, 0, 3.0, 0]])):
        algorithm = Reinforce(whiten=False, turn_rewards=turns)
        rewards, _, _ = shape(algorithm, annotated(algorithm, scored))
        assert advantages_of(algorithm, rewards).advantage.tolist() == expected


def test_remax_compares_with_the_greedy_response():
    mask, greedy = mask_of([2, 1, 2], 2), torch.tensor([0.5, 1.0, torch.nan])
    algorithm = ReMax()
    scored = judged(torch.ones(3), mask, greedy=greedy)
    rewards, _, _ = shape(algorithm, annotated(algorithm, scored))
    found = advantages_of(algorithm, rewards)
    assert found.advantage.tolist() == [[0.5, 0.5], [0, 0], [0, 0]]
    assert found.returns.tolist() == [[1, 1], [1, 0], [0, 0]]
    batch, metrics = algorithm.credit(annotated(algorithm, scored))
    assert batch.advantage.tolist() == [[0.5, 0.5], [0, 0]]  # what has no greedy response is not learned from
    assert metrics["critic/score/mean"] == 1.0
