"""Experts of a mixture in even use: the loss beside the algorithm's own, however a batch is laid out."""

from dataclasses import replace

import pytest
import torch

from burnish.config import load
from burnish.language.roles import Balance
from burnish.tasks import assemble
from burnish.training.ranks import SINGLE_RANK
from burnish.types.completion import UNROUTED
from tests.support import talkers
from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun
from tests.support.universal import universal_folder

REPLAYED = ["model.dtype=bfloat16", "rollout.router_replay=true", "rollout.max_new_tokens=16"]
SELDOM = seldom(["trainer.layout=shared"], ["model.gradient_checkpointing=true"])
ONE_STEP = ["steps=1", "trainer.mini_batch_size=null", "trainer.epochs=1", "model.lora=null"]


def learned(files, algorithm: str, *options: str) -> dict[str, float]:
    run = TinyRun(files, "language", "qwen3_moe", f"algorithm={algorithm}", *ONE_STEP, *options, name="balance")
    run.train()
    return run.metrics[1]


@pytest.mark.parametrize("laid_out", [["trainer.layout=padded"], *SELDOM])
def test_no_layout_changes_it(laid_out, files):
    given = ["model.router_aux_loss_coef=0.3"]
    whole, plain, other = (learned(files, "grpo", *options) for options in (given, [], [*given, *laid_out]))
    assert whole["actor/router_aux_loss"] >= 1
    assert "actor/router_aux_loss" not in plain
    assert abs(whole["actor/grad_norm"] / plain["actor/grad_norm"] - 1) > 1e-2, "it has a gradient"
    for name in ("actor/router_aux_loss", "actor/grad_norm", "actor/loss"):
        assert other[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("name", ["llama4_text", *seldom("jetmoe", "hunyuan_v1_moe", "minimax")])
def test_logits_of_routers_are_those_that_the_class_records(name):
    network = talkers.load(universal_folder(name)).network
    Balance({"policy": network}, 1.0)._router_logits = seen = []
    recorded = network(torch.arange(8)[None], output_router_logits=True).router_logits
    assert torch.equal(torch.cat(seen), torch.cat(recorded).flatten(0, -2))


def test_a_critic_with_a_trunk_of_its_own_has_a_loss_of_its_own(files):
    options = [["critic.warmup_updates=0", *more] for more in (["model.router_aux_loss_coef=0.3"], [])]
    told, alone = (learned(files, "ppo", *each) for each in options)
    assert told["critic/router_aux_loss"] >= 1
    assert all(told[f"{role}/grad_norm"] != alone[f"{role}/grad_norm"] for role in ("actor", "critic"))


@pytest.mark.parametrize("laid_out", [[], *SELDOM])
def test_experts_that_sampled_are_those_that_learn(laid_out, files):
    run = TinyRun(files, "language", "qwen3_moe", "algorithm=grpo", *ONE_STEP, *REPLAYED, *laid_out, name="replay")
    assembly = assemble(load(str(run.recipe), run.options), SINGLE_RANK, trains=True)
    assembly.check()
    roles, apart = assembly.roles, []
    weights = dict(roles.model.network.named_parameters())
    with torch.no_grad():
        for name in (name for name in weights if "mlp" in name):  # experts differ, and are about as good
            near = 0.02 * weights[name] + 0.98 * weights[name].mean(0)
            weights[name].copy_(near if name.endswith("gate.weight") else 3 * weights[name])
    assembly.scorer.start()
    trace = assembly.source.rollout(1).trace
    assembly.scorer.close()
    for some in (trace, replace(trace, routed_experts=[UNROUTED] * len(trace))):
        found = roles.policy(some).logprob
        apart.append(float((found.detach() - trace.logprob).abs()[trace.mask].mean()))
        found.sum().backward()
        assert all(weights[f"model.layers.{layer}.mlp.gate.weight"].grad.norm() > 1 for layer in (0, 1))
    read = trace.lengths.prompt + trace.lengths.response - 1
    assert list(map(len, trace.routed_experts)) == read.tolist()
    assert apart[0] < apart[1] / 3, "a router chooses others where values are rounded otherwise"
