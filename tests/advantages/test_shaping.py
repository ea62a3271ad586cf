"""Where rewards stand, what is taken off, what is clipped and counted."""

import math

import pytest
import torch

from burnish.advantages.shaping import clip_values, overlong_penalty, place_reward, place_step_rewards, turn_numbers
from tests.support.token_losses import mask_of

TURNS = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()


def test_a_reward_stands_on_the_last_chosen_token():
    placed = place_reward(torch.tensor([1.0, 2.0, 3.0]), TURNS)
    assert placed.tolist() == [[0, 0, 0, 1, 0], [0, 0, 2, 0, 0], [0] * 5]


def test_rewards_of_steps():
    """Step 1 of the second sample has no chosen token; step numbers of other tokens are not read."""
    step = torch.tensor([[0, 0, 0, 1, 99], [-5, 0, 0, 1, 1], [0, 0, 0, 1, 1]])
    placed = place_step_rewards(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), step, TURNS)
    assert placed.tolist() == [[0, 1, 0, 2, 0], [0, 0, 3, 0, 0], [0] * 5]


def test_the_same_reward_on_the_only_step_is_the_reward_of_the_sample():
    reward, step = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3, 5, dtype=torch.long)
    assert place_step_rewards(reward[:, None], step, TURNS).equal(place_reward(reward, TURNS))


TWO_TURNS = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 0, 1]]).bool()


def test_turns_are_stretches_of_chosen_tokens():
    assert turn_numbers(TWO_TURNS)[TWO_TURNS].tolist() == [0, 0, 1, 0, 0, 1]


def test_clipping_counts_what_was_outside_before():
    values = torch.tensor([[-3.0, 0.5, 3.0], [1.0, 9.0, math.nan]])
    mask = mask_of([3, 1], 3)
    clipped, fraction = clip_values(values, -1.0, 1.0, mask)
    assert clipped.tolist() == [[-1, 0.5, 1], [1, 0, 0]]
    assert fraction == pytest.approx(2 / 4)
    assert clip_values(clipped, -1.0, 1.0, mask)[1] == 0
    assert clip_values(values, -1.0, 1.0, mask & False)[1] == 0
    with pytest.raises(ValueError, match="must not be above"):
        clip_values(values, 1.0, -1.0)


def test_the_overlong_penalty_falls_in_a_line():
    penalty = overlong_penalty(torch.tensor([0, 6, 8, 10]), max_length=10, buffer=4, factor=2.0)
    assert penalty.tolist() == [0, 0, -1, -2]
    for buffer in (0, 10):
        with pytest.raises(ValueError, match=f"overlong buffer is {buffer}"):
            overlong_penalty(torch.tensor([1]), max_length=10, buffer=buffer)
