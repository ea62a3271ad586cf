"""What becomes of rewards before they are advantages, on a tiny model that sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from burnish.algorithms.language.policy_gradient import GRPO
from tests.support.token_batches import LIMIT, Bench, N, close, with_rewards


class TestRewards:
    def test_statistics_of_the_run_are_saved_and_go_on(self):
        first = Bench(GRPO(reward_norm=True, advantage_std="none"))
        first.train(2)
        resumed = Bench(GRPO(reward_norm=True, advantage_std="none"))
        resumed.workers.load_state_dict(first.workers.state_dict())
        again, expected = resumed.learned(resumed.collect(3)), first.learned(first.collect(3))
        assert torch.equal(again[0].advantage, expected[0].advantage)
        assert again[1] == expected[1]

    def test_long_responses_pay(self):
        made = GRPO(overlong={"buffer": 3, "factor": 2.0}, advantage_std="none")
        bench = Bench(made)
        answered = bench.collect()
        length = answered.trace.mask.sum(1)
        flat = with_rewards(answered, torch.full((len(length),), 0.5))
        batch, metrics = bench.learned(flat)
        penalty = -2.0 * ((length - (LIMIT - 3)) / 3).clamp_min(0)
        centred = penalty - penalty.view(-1, N).mean(1).repeat_interleave(N)
        close(batch.advantage[:, 0], centred[length > 0])
        assert metrics["critic/overlong_penalty/mean"] == pytest.approx(float(penalty.mean()))
        assert "overlong.buffer" in next(made.complaints(4, 3))

    def test_rewards_and_advantages_are_clipped_and_counted(self):
        bench = Bench(GRPO(reward_clip=0.1, advantage_clip=0.5))
        batch, metrics = bench.learned()
        assert batch.advantage.abs().max() <= 0.5
        assert 0 < metrics["critic/advantages/clip_ratio"] <= 1
        assert metrics["critic/rewards/clip_ratio"] > 0
        assert metrics["critic/rewards/max"] == pytest.approx(0.1)

    def test_truncated_responses_are_compared_with_and_not_learned(self):
        answered = Bench(GRPO()).collect()
        finished = torch.ones_like(answered.trace.finished)
        finished[::N] = False
        cut = replace(answered, trace=replace(answered.trace, finished=finished))
        (left, _), (whole, _) = Bench(GRPO(mask_truncated=True)).learned(cut), Bench(GRPO()).learned(cut)
        assert len(left) == len(whole) * (N - 1) // N
        assert torch.equal(left.advantage, whole.advantage[finished])
