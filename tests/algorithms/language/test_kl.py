"""KL to the reference, in the loss and in the reward, on a tiny model that sees."""

from __future__ import annotations

import pytest
import torch

from burnish.algorithms.kl import TokenKl
from burnish.algorithms.language.policy_gradient import GRPO
from burnish.algorithms.language.ppo import PPO
from tests.support.token_batches import Bench, close


class TestKl:
    def test_in_the_reward_it_is_taken_off_every_token(self):
        bench = Bench(PPO(kl=TokenKl(route="reward", coef=0.5), whiten=False, lam=1.0))
        bench.train()
        answered = bench.collect(2)
        annotated = bench.workers.annotate(answered)
        batch, metrics = bench.algorithm.credit(annotated)
        kl = torch.where(answered.trace.mask, annotated.old - annotated.reference, 0.0)
        assert kl.abs().max() > 1e-3
        first = batch.returns[:, 0]
        close(first, (answered.scores.reward - 0.5 * kl.sum(1))[answered.trace.mask.any(1)])
        assert metrics["actor/kl_per_response"] == pytest.approx(float(kl.sum(1).mean()), abs=1e-4)
        assert metrics["critic/score/mean"] != metrics["critic/rewards/mean"]

    @pytest.mark.parametrize("kind", ["k2", "k3", "k1+", "k3+", "unbiased"])
    def test_in_the_loss_it_pulls_back(self, kind):
        bench = Bench(GRPO(kl=TokenKl(kind=kind, coef=100.0)), lr=1e-3)
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for value in bench.roles.parameters().values():
                value += 0.02 * torch.randn(value.shape, generator=draw)
        distances = [bench.train()["actor/kl_loss"] for _ in range(4)]
        assert distances[-1] < distances[0]

    def test_the_controller_follows_the_distance_and_is_saved(self):
        kl = TokenKl(controller="adaptive", target=1e-6, horizon=100, coef=0.1)
        bench = Bench(GRPO(kl=kl))
        coefs = [bench.train()["actor/kl_coef"] for _ in range(4)]
        assert coefs[0] == 0.1
        assert coefs[3] > coefs[2] > 0
        state = bench.roles.memory.state_dict()
        other = Bench(GRPO(kl=kl))
        other.roles.memory.load_state_dict(state)
        assert other.roles.memory["kl"].coef == bench.roles.memory["kl"].coef != 0.1
        far = list(GRPO(kl=kl).complaints(500, 10))
        assert "kl.horizon" in far[0]
        assert not list(GRPO(kl=kl).complaints(499, 10))

    @pytest.mark.parametrize("lora", [False, True])
    def test_a_refreshed_reference_is_the_policy_again(self, lora):
        bench = Bench(GRPO(kl=TokenKl(refresh_every=2)), lora=lora)
        bench.train()
        answered = bench.collect(2)
        away = bench.workers.annotate(answered)
        assert (away.old - away.reference).abs().max() > 1e-3
        bench.train()
        answered = bench.collect(3)
        near = bench.workers.annotate(answered)
        close(near.reference, near.old)
