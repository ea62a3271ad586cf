"""Experts of a mixture in even use: the published loss on the tokens that responses were chosen from, however cut."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from burnish.algorithms.language.ppo import PPO
from burnish.algorithms.language.sft import SFT
from burnish.language.logprobs import response_states
from burnish.training.step_metrics import step_metrics
from burnish.types.completion import ResponseRows
from burnish.types.rollout import OfflineResponses
from tests.support.language_samples import responses
from tests.support.tiny_language import chat
from tests.support.token_batches import Bench

COEF = 0.3


def bench_of(algorithm, coef=COEF, **more) -> Bench:
    return Bench(algorithm, family="qwen3_moe", router_aux_loss_coef=coef, **more)


def trace_of(bench: Bench):
    encoded = [bench.roles.model.encode(*chat(text)) for text in ("How are you?", "And what of it?")]
    return responses(bench.roles.model, type(encoded[0]).cat(encoded), [0, 0, 1, 1, 0], [4, 1, 6, 3, 0])


def flat(bench: Bench, name="policy"):
    values = bench.roles.parameters(name).values()
    return torch.cat([(torch.zeros_like(v) if v.grad is None else v.grad).flatten() for v in values])


def imitated(bench: Bench):
    """The gradient and metrics of imitating responses, one of which is empty."""
    answers = ResponseRows(trace=trace_of(bench), members=1)
    given = OfflineResponses(answers=answers, good=torch.ones(5, dtype=torch.bool), update=1, version=0, seed=0)
    batch, _ = bench.algorithm.credit(given)
    bench.workers.groups[0].zero_grad()
    share = bench.workers._backward(batch, bench.algorithm.size(batch))
    return flat(bench), step_metrics(share)


def published(bench: Bench, network) -> torch.Tensor:
    """The loss of transformers at the states that responses were chosen from."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    heard, hooks = [], []
    for layer in bench.roles.model.text(network).layers:
        hooks.append(layer.mlp.gate.register_forward_hook(lambda m, i, output: heard.append(output[0])))
    states = response_states(bench.roles.model, network, trace_of(bench), layout="packed")
    for hook in hooks:
        hook.remove()
    assert len(states.index) == 4 + 1 + 6 + 3
    return load_balancing_loss_func(tuple(layer[states.index] for layer in heard), 4, 2)


def test_it_adds_transformers_gradient_at_the_states_of_the_responses():
    bench, without = bench_of(SFT()), bench_of(SFT(), 0.0)
    added, metrics = imitated(bench)
    plain, unbalanced = imitated(without)
    without.workers.groups[0].zero_grad()
    expected = published(without, without.roles.model.network)
    (COEF * expected).backward()
    torch.testing.assert_close(added - plain, flat(without), rtol=1e-4, atol=1e-5)
    assert metrics["actor/router_aux_loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert "actor/router_aux_loss" not in unbalanced
    assert metrics["actor/sft_loss"] == pytest.approx(unbalanced["actor/sft_loss"])


@pytest.mark.parametrize(
    "how", [{"budget": 1}, {"layout": "padded"}, {"layout": "shared", "budget": 40}, {"checkpointing": True}]
)
def test_no_cut_and_no_layout_changes_it(how):
    expected, metrics = imitated(bench_of(SFT()))
    bench = bench_of(SFT(), **how)
    with torch.no_grad():
        bench.roles.policy(trace_of(bench))  # what is looked at in between is not counted
    for _ in range(2):
        gradient, other = imitated(bench)
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)
        assert other["actor/router_aux_loss"] == pytest.approx(metrics["actor/router_aux_loss"], rel=1e-5)


@pytest.mark.parametrize("lora", [False, True], ids=["weights", "adapters"])
def test_a_critic_with_a_trunk_of_its_own_has_a_loss_of_its_own(lora):
    def gradient(bench):
        balance, trace = bench.roles.balance, trace_of(bench)
        with balance.counting() if balance else nullcontext():
            bench.roles.scores_and_values(trace)
        with balance.learning() if balance else nullcontext():
            scores, values = bench.roles.scores_and_values(trace)
            (scores.logprob.sum() + values.sum()).backward()
        return {name: flat(bench, name) for name in ("policy", "critic")}

    with_loss, without = (bench_of(PPO(), coef, lora=lora) for coef in (COEF, 0.0))
    with torch.no_grad():  # a critic that differs from the policy
        for bench in (with_loss, without):
            for name, value in bench.roles.parameters("critic").items():
                value += 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
    added, plain = gradient(with_loss), gradient(without)
    losses = []
    for name in ("policy", "critic"):
        for value in without.roles.parameters(name).values():
            value.grad = None
        with without.roles.active(name) as network:
            expected = published(without, network)
        (COEF * expected).backward()
        torch.testing.assert_close(added[name] - plain[name], flat(without, name), rtol=1e-3, atol=1e-5)
        losses.append(float(expected.detach()))
    metrics = with_loss.roles.balance.metrics()
    assert metrics["actor/router_aux_loss"] == pytest.approx(losses[0], rel=1e-5)
    assert metrics["critic/router_aux_loss"] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)
