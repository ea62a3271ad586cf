"""Groups that something can be learned from: what is kept, what is replaced, and what is counted."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from burnish.rollout.filter import fill, varied
from burnish.types.rollout import Prompt, Rollouts, Scores


@dataclass(kw_only=True)
class Plain(Rollouts):
    number: Tensor  # [B] of the row in the order of sampling


class Draws:
    """Batches of groups of two, one after the other."""

    def __init__(self, *batches, missing=()):
        self.batches, self.missing, self.given = batches, missing, 0

    def __call__(self) -> Plain:
        rewards = self.batches[self.given]
        reward = torch.tensor([value for pair in rewards for value in pair])
        count, first = len(reward), 100 * self.given
        absent = torch.tensor([first + i in self.missing for i in range(count)])
        self.given += 1
        scores = Scores(
            reward=reward, missing=absent, components=reward[:, None], names=("r",), weights=(1.0,), notes=[""] * count
        )
        return Plain(
            prompts=[Prompt(text=f"{i}") for i in range(count)], group=torch.arange(count) // 2,
            sample=torch.arange(count) % 2, scores=scores, update=1, version=0, seed=0,
            number=torch.arange(count) + first, metrics={"critic/diversity": float(self.given)},
        )  # fmt: skip


GOOD, EQUAL = (0.0, 1.0), (0.3, 0.3)


def test_equality_is_exact():
    almost = (0.1 + 0.2, 0.3)
    batch = Draws([EQUAL, (0.5, torch.nextafter(torch.tensor(0.5), torch.tensor(1.0)).item()), GOOD, almost])()
    assert varied(batch).tolist() == [2, 3, 4, 5]  # in float32 the last two are one number


def test_a_group_with_one_reward_left_has_nothing_to_compare():
    batch = Draws([GOOD, GOOD], missing={0})()
    assert varied(batch).tolist() == [2, 3]


def test_without_replacement_groups_are_only_dropped():
    draws = Draws([GOOD, EQUAL, GOOD])
    kept = fill(draws, 3, 1)
    assert kept.number.tolist() == [0, 1, 4, 5]
    assert kept.group.tolist() == [0, 0, 1, 1]
    assert kept.metrics == {
        "critic/diversity": 1.0,
        "train/num_gen_batches": 1.0,
        "train/kept_groups": 2.0,
        "train/dropped_groups": 1.0,
        "train/spare_groups": 0.0,
        "train/sampled_reward/mean": pytest.approx(2.6 / 6),
    }


def test_a_batch_is_filled_from_the_next_ones_and_no_further():
    draws = Draws([GOOD, EQUAL, EQUAL], [EQUAL, GOOD, GOOD], [GOOD, GOOD, GOOD])
    kept = fill(draws, 3, 5)
    assert draws.given == 2
    assert kept.number.tolist() == [0, 1, 102, 103, 104, 105]
    assert kept.group.tolist() == [0, 0, 1, 1, 2, 2]
    assert kept.metrics["train/num_gen_batches"] == 2
    assert kept.metrics["train/dropped_groups"] == 3


def test_spare_groups_are_the_last_ones():
    kept = fill(Draws([GOOD, EQUAL], [GOOD, GOOD]), 2, 5)
    assert kept.number.tolist() == [0, 1, 100, 101]
    assert kept.metrics["train/spare_groups"] == 1
    assert kept.metrics["train/kept_groups"] == 2


def test_it_never_goes_on_for_ever():
    draws = Draws(*[[EQUAL, EQUAL]] * 4)
    kept = fill(draws, 2, 3)
    assert draws.given == 3
    assert len(kept) == 0
    assert kept.metrics["train/dropped_groups"] == 6
    assert kept.metrics["train/kept_groups"] == 0
