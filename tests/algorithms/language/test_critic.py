"""The critic of PPO over tokens, on a tiny model that sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from burnish.algorithms.language.ppo import PPO
from burnish.options import OptimizerOptions
from burnish.options.language import CriticOptions
from tests.support.token_batches import Bench, close


class TestCritic:
    def test_while_it_warms_up_the_policy_stays_bit_by_bit(self):
        options = CriticOptions(warmup_updates=2, optimizer=OptimizerOptions(lr=1e-2))
        bench = Bench(PPO(), critic=options)
        policy, critic = bench.weights(), bench.weights("critic")
        metrics = bench.train(2)
        assert torch.equal(bench.weights(), policy)
        assert (bench.weights("critic") - critic).abs().max() > 0
        assert "actor/pg_loss" not in metrics
        assert metrics["critic/vf_loss"] > 0
        assert "actor/pg_loss" in bench.train()
        assert (bench.weights() - policy).abs().max() > 0

    def test_it_learns_what_responses_earn(self):
        bench = Bench(PPO(whiten=False), epochs=4, lr=1e-9)
        first = bench.train()
        last = bench.train(9)
        assert last["critic/vf_loss"] < first["critic/vf_loss"]
        assert last["critic/vf_explained_var"] > first["critic/vf_explained_var"]

    @pytest.mark.parametrize("detach", [True, False])
    def test_a_shared_trunk_learns_from_it_only_if_asked(self, detach):
        bench = Bench(PPO(), critic=CriticOptions(trunk="shared", detach=detach))
        batch, _ = bench.learned()
        alone = replace(batch, advantage=torch.zeros_like(batch.advantage))
        bench.gradient(alone)
        moved = max(float(v.grad.abs().max()) for v in bench.roles.parameters().values() if v.grad is not None)
        assert (moved == 0) == detach

    @pytest.mark.parametrize("trunk", ["own", "shared"])
    def test_with_adapters_it_has_its_own(self, trunk):
        bench = Bench(PPO(), lora=True, critic=CriticOptions(trunk=trunk, optimizer=OptimizerOptions(lr=1e-2)))
        policy, critic = bench.weights(), bench.weights("critic")
        bench.train(2)
        assert (bench.weights() - policy).abs().max() > 1e-3
        assert (bench.weights("critic") - critic).abs().max() > 1e-3
        assert any("lora" in key for key in bench.roles.parameters("critic")) == (trunk == "own")

    def test_what_it_predicts_before_the_update_is_what_clipping_refers_to(self):
        bench = Bench(PPO(value_clip=0.2))
        batch, metrics = bench.learned()
        close(batch.value[batch.mask], bench.roles.values(batch.trace).detach()[batch.mask])
        assert metrics["critic/values/mean"] == pytest.approx(float(batch.value[batch.mask].mean()), abs=1e-6)
        assert bench.train()["critic/vf_clipfrac"] == 0.0
