"""Experts of a mixture in even use: the loss beside the algorithm's own, however a batch is laid out."""

import pytest

from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun

ONE_STEP = ["steps=1", "trainer.mini_batch_size=null", "trainer.epochs=1", "model.lora=null"]


def learned(files, algorithm: str, *options: str) -> dict[str, float]:
    run = TinyRun(files, "language", "qwen3_moe", f"algorithm={algorithm}", *ONE_STEP, *options, name="balance")
    run.train()
    return run.metrics[1]


@pytest.mark.parametrize(
    "laid_out", [["trainer.layout=padded"], *seldom(["trainer.layout=shared"], ["model.gradient_checkpointing=true"])]
)
def test_no_layout_changes_it(laid_out, files):
    given = ["model.router_aux_loss_coef=0.3"]
    whole, plain, other = (learned(files, "grpo", *options) for options in (given, [], [*given, *laid_out]))
    assert whole["actor/router_aux_loss"] >= 1
    assert "actor/router_aux_loss" not in plain
    assert abs(whole["actor/grad_norm"] / plain["actor/grad_norm"] - 1) > 1e-2, "it has a gradient"
    for name in ("actor/router_aux_loss", "actor/grad_norm", "actor/loss"):
        assert other[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-5), name


def test_a_critic_with_a_trunk_of_its_own_has_a_loss_of_its_own(files):
    told = learned(files, "ppo", "model.router_aux_loss_coef=0.3", "critic.warmup_updates=0")
    alone = learned(files, "ppo", "critic.warmup_updates=0")
    assert told["critic/router_aux_loss"] >= 1
    for role in ("actor", "critic"):
        assert told[f"{role}/grad_norm"] != alone[f"{role}/grad_norm"]
