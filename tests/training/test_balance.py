"""Experts of a mixture in even use: the published loss on the tokens that responses were chosen from, however cut."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from burnish.algorithms.language.ppo import PPO
from burnish.algorithms.language.sft import SFT
from burnish.config import load
from burnish.language.logprobs import response_states
from burnish.models.language.loading import check_experts, load_language_model
from burnish.options import OptimizerOptions
from burnish.options.flow import ModelOptions
from burnish.options.language import CriticOptions, LanguageLoraOptions, LanguageModelOptions, LanguageTrainerOptions
from burnish.tasks import assemble
from burnish.tasks.language.roles import LanguageRoles
from burnish.training.parameter_groups import ParameterGroup
from burnish.training.step_metrics import step_metrics
from burnish.training.trainer import Trainer
from burnish.types.completion import ResponseRows
from burnish.types.rollout import OfflineResponses
from burnish.utils.errors import UserError
from burnish.utils.timer import Stopwatch
from tests.support.language_samples import folder_of, responses
from tests.support.tiny_language import chat, tiny_language

COEF = 0.3


def roles(algorithm, coef, *, lora=None, critic=None, budget=1000, layout="auto", checkpointing=False):
    model = load_language_model(
        ModelOptions(path=str(folder_of("qwen3_moe")), device="cpu", gradient_checkpointing=checkpointing)
    )
    return LanguageRoles(
        model, algorithm.needs(), lora, critic=critic or CriticOptions(), freeze=[], temperature=1.0, layout=layout,
        micro_batch_size=budget, on_policy=True, memory=algorithm.make_memory(), seed=0, router_aux_loss_coef=coef,
    )  # fmt: skip


class Bench:
    def __init__(self, coef=COEF, *, budget=1000, layout="auto", checkpointing=False):
        self.algorithm = SFT()
        self.roles = roles(self.algorithm, coef, budget=budget, layout=layout, checkpointing=checkpointing)
        group = ParameterGroup("actor", self.roles.parameters(), OptimizerOptions(max_grad_norm=None), total_steps=9)
        self.workers = Trainer(
            self.roles, self.algorithm, [group], options=LanguageTrainerOptions(), ema=None, seed=0,
            watch=Stopwatch(),
        )  # fmt: skip
        encoded = [self.roles.model.encode(*chat(text)) for text in ("How are you?", "And what of it?")]
        self.trace = responses(self.roles.model, type(encoded[0]).cat(encoded), [0, 0, 1, 1, 0], [4, 1, 6, 3, 0])

    def gradient(self):
        answers = ResponseRows(trace=self.trace, members=1)
        given = OfflineResponses(answers=answers, good=torch.ones(5, dtype=torch.bool), update=1, version=0, seed=0)
        batch, _ = self.algorithm.credit(given)
        self.workers.groups[0].zero_grad()
        share = self.workers._backward(batch, self.algorithm.size(batch))
        return flat(self.roles), step_metrics(share)


def flat(roles, name="policy"):
    values = roles.parameters(name).values()
    return torch.cat([(torch.zeros_like(v) if v.grad is None else v.grad).flatten() for v in values])


def test_it_adds_transformers_gradient_at_the_states_of_the_responses():
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    bench, without = Bench(), Bench(0.0)
    added, metrics = bench.gradient()
    plain, unbalanced = without.gradient()
    network, heard = without.roles.model.network, []
    for layer in without.roles.model.text(network).layers:
        layer.mlp.gate.register_forward_hook(lambda module, inputs, output: heard.append(output[0]))
    states = response_states(without.roles.model, network, bench.trace, layout="packed")
    assert len(states.index) == 4 + 1 + 6 + 3
    expected = load_balancing_loss_func(tuple(layer[states.index] for layer in heard), 4, 2)
    without.workers.groups[0].zero_grad()
    (COEF * expected).backward()
    torch.testing.assert_close(added - plain, flat(without.roles), rtol=1e-4, atol=1e-5)
    assert metrics["actor/router_aux_loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert "actor/router_aux_loss" not in unbalanced
    assert metrics["actor/sft_loss"] == pytest.approx(unbalanced["actor/sft_loss"])


@pytest.mark.parametrize(
    "how", [{"budget": 1}, {"layout": "padded"}, {"layout": "shared", "budget": 40}, {"checkpointing": True}]
)
def test_no_cut_and_no_layout_changes_it(how):
    expected, metrics = Bench().gradient()
    bench = Bench(**how)
    with torch.no_grad():
        bench.roles.policy(bench.trace)  # what is looked at in between is not counted
    gradient, other = bench.gradient()
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)
    assert other["actor/router_aux_loss"] == pytest.approx(metrics["actor/router_aux_loss"], rel=1e-5)
    again, _ = bench.gradient()
    torch.testing.assert_close(again, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lora", [None, LanguageLoraOptions(rank=2)], ids=["weights", "adapters"])
def test_a_critic_with_a_trunk_of_its_own_has_a_loss_of_its_own(lora):
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    def roles_of(coef):
        return roles(PPO(), coef, lora=lora)

    def gradient(some):
        balance = some.balance
        with balance.counting() if balance else nullcontext():
            some.scores_and_values(trace)
        with balance.learning() if balance else nullcontext():
            scores, values = some.scores_and_values(trace)
            (scores.logprob.sum() + values.sum()).backward()
        return {name: [flat(some, name), balance.metrics() if balance else {}] for name in ("policy", "critic")}

    with_loss, without = roles_of(COEF), roles_of(0.0)
    with torch.no_grad():  # a critic that differs from the policy
        for some in (with_loss, without):
            for name, value in some.parameters("critic").items():
                value += 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
    encoded = [without.model.encode(*chat(text)) for text in ("How are you?", "And what of it?")]
    trace = responses(without.model, type(encoded[0]).cat(encoded), [0, 0, 1, 1, 0], [4, 1, 6, 3, 0])
    added, plain = gradient(with_loss), gradient(without)
    losses = []
    for name in ("policy", "critic"):
        for value in without.parameters(name).values():
            value.grad = None
        with without.active(name) as network:
            heard, hooks = [], []
            for layer in without.model.text(network).layers:
                hooks.append(layer.mlp.gate.register_forward_hook(lambda m, i, output, to=heard: to.append(output[0])))
            states = response_states(without.model, network, trace, layout="packed")
            for hook in hooks:
                hook.remove()
        expected = load_balancing_loss_func(tuple(layer[states.index] for layer in heard), 4, 2)
        (COEF * expected).backward()
        torch.testing.assert_close(added[name][0] - plain[name][0], flat(without, name), rtol=1e-3, atol=1e-5)
        losses.append(float(expected.detach()))
    metrics = with_loss.balance.metrics()
    assert metrics["actor/router_aux_loss"] == pytest.approx(losses[0], rel=1e-5)
    assert metrics["critic/router_aux_loss"] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)


def test_a_critic_on_the_policys_trunk_has_none_of_its_own():
    both = roles(PPO(), COEF, critic=CriticOptions(trunk="shared"))
    trace = responses(both.model, both.model.encode(*chat("How are you?")), [0], [4])
    with both.balance.counting():
        both.scores_and_values(trace)
    assert both.balance.metrics().keys() == {"actor/router_aux_loss"}


def test_a_dense_model_is_refused_before_weights_load():
    assembly = assemble(load("vlm_quickstart", ["model.router_aux_loss_coef=0.01", "output_dir=unused"]))
    with pytest.raises(UserError, match="not a mixture of experts"):
        assembly.check_data()
    assert "roles" not in vars(assembly)


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe"])
def test_mixtures_are_known_by_what_transformers_writes(tmp_path, family):
    folder = tiny_language(tmp_path, family)
    check_experts(LanguageModelOptions(path=str(folder), router_aux_loss_coef=0.01))
