"""Mistakes that others made in training models that see, where no test of a single part would show them.

Those of single parts are tested with them: positions and layouts in tests/language, forged and sampled placeholders in
tests/models and tests/language/test_sampling.py, prompts that are too long in tests/data/language, rewards
that read the prompt in tests/rewards/text, statistics and discounts in tests/advantages and tests/conformance.
"""

from __future__ import annotations

import math

import pytest
import torch

from burnish.algorithms.kl import TokenKl
from burnish.algorithms.language.policy_gradient import GRPO
from burnish.algorithms.language.ppo import PPO
from burnish.config import load
from burnish.losses.policy import masked
from burnish.tasks import assemble
from burnish.tasks.language.engine import Encoder
from burnish.tasks.language.sampling import rollout_sampling, validation_sampling
from burnish.training.trainer import Diverged
from tests.support.language_tables import Tables, answered
from tests.support.tiny_recipes import language_recipe, write_language_models, write_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Three questions with one picture, with none and with two."""
    folder = tmp_path_factory.mktemp("traps")
    write_language_models(folder, ["qwen2_5_vl"])
    tree = language_recipe(folder, "qwen2_5_vl")
    tree["model"] |= {"device": "cpu", "lora": None}
    tree["data"]["train_batch_size"] = 3
    del tree["optimizer"]
    tree["rollout"] = {"n": 4, "max_new_tokens": 4, "batch_size": 2}
    tree |= {"algorithm": {"name": "grpo", "reward_norm": True}, "ema": {"decay": 0.5}}
    return write_recipe(folder / "recipe.yaml", tree)


def assembly_of(recipe, *overrides):
    assembly = assemble(load(str(recipe), list(overrides)))
    assembly.check_data()
    assembly.check()
    return assembly


def test_a_batch_of_more_prompts_than_there_are_is_told(recipe, caplog):
    assemble(load(str(recipe), ["data.train_batch_size=7"])).check_data()
    assert "is 7, but there are only 3 records: a batch has each of them 2.33 times" in caplog.text


def test_a_prompt_is_processed_once_and_its_pixels_are_stored_once(recipe):
    assembly = assemble(load(str(recipe)))
    model, seen = assembly.roles.model, []
    assembly.engine.encode = Encoder(model)  # which knows nothing of what was looked at before the run
    encode = model.encode
    model.encode = lambda *parts: seen.append(parts) or encode(*parts)
    assembly.check_data()
    assembly.check()
    first, second = assembly.source.collect(1), assembly.source.collect(2)
    assembly.evaluate(None, n=2)
    assert len(seen) == 3
    batch, _ = assembly.config.algorithm.credit(assembly.workers.annotate(first))
    pixels = {id(one) for one in assembly.engine.encode(assembly.train_prompts).table.features}
    parts = [*assembly.config.algorithm.micro_batches(batch, 40)]
    assert len(parts) > 3
    for trace in (first.trace, second.trace, batch.trace, *(part.trace for part in parts)):
        assert {id(one) for one in trace.prompts.table.features} <= pixels
        assert len(trace.prompts.table) <= 3


def test_validation_judges_every_question_and_leaves_training_as_it_is(recipe):
    """Its own temperature, its own seeds, no dropped tail, and no trace in the statistics of rewards."""
    assembly, untouched = (assembly_of(recipe, "validation.temperature=0") for _ in range(2))
    before = assembly.roles.memory.state_dict()
    judged = assembly.evaluate(None, n=1)
    assert judged == assembly.evaluate(None, n=1)
    assert "val-core/default/reward/mean@1" in judged
    assert len(assembly.val_prompts) == 3
    assert validation_sampling(assembly.config).temperature == 0
    assert rollout_sampling(assembly.config).temperature == 1
    assert assembly.roles.memory.state_dict() == before
    assert torch.equal(assembly.source.collect(1).trace.ids, untouched.source.collect(1).trace.ids)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_moves_nothing_and_is_counted(recipe, where):
    """Neither policy nor critic, average, optimizer nor learning rate."""
    assembly = assembly_of(recipe, "algorithm.name=ppo", "trainer.max_skipped_updates=1")
    workers, algorithm = assembly.workers, assembly.config.algorithm
    batch, _ = algorithm.credit(workers.annotate(assembly.source.collect(1)))
    head = assembly.roles.value_head.weight
    if where == "loss":
        batch.advantage[:] = math.nan
    else:
        head.register_hook(lambda gradient: gradient * math.inf)
    before = {name: value.clone() for name, value in _tensors(workers.state_dict())}
    metrics = workers.update(batch, 1)
    assert metrics["actor/skipped_updates"] == 1
    assert "actor/loss" not in metrics
    after = dict(_tensors(workers.state_dict()))
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert workers.optimizer_steps == 0
    with pytest.raises(Diverged, match=r"trainer\.max_skipped_updates=1"):
        workers.update(batch, 2)


def _tensors(tree, prefix=""):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _tensors(value, f"{prefix}{name}.")
        elif isinstance(value, torch.Tensor):
            yield prefix + name, value


def test_policy_and_critic_are_clipped_each_by_its_own_bound(recipe):
    assembly = assembly_of(
        recipe, "algorithm.name=ppo", "optimizer.max_grad_norm=1e-3", "critic.optimizer.max_grad_norm=1e-2"
    )
    workers, algorithm = assembly.workers, assembly.config.algorithm
    batch, _ = algorithm.credit(workers.annotate(assembly.source.collect(1)))
    metrics = workers.update(batch, 1)
    for group, bound in zip(workers.groups, (1e-3, 1e-2), strict=True):
        assert metrics[f"{group.name}/grad_norm"] > bound
        norm = torch.stack([p.grad.norm() for p in group.parameters.values() if p.grad is not None]).norm()
        assert float(norm) == pytest.approx(bound, rel=1e-3)


def test_frozen_adapters_stay(recipe):
    assembly = assembly_of(recipe, "model.lora.rank=2", "model.freeze=['*layers.0.*']", "optimizer.lr=0.1")
    before = {name: value.detach().clone() for name, value in assembly.roles.parameters().items()}
    batch, _ = assembly.config.algorithm.credit(assembly.workers.annotate(assembly.source.collect(1)))
    assembly.workers.update(batch, 1)
    moved = {name for name, value in assembly.roles.parameters().items() if not torch.equal(value, before[name])}
    assert moved
    assert not [name for name in moved if "layers.0." in name]


def learned(algorithm):
    roles = Tables(algorithm.make_memory())
    batch, _ = algorithm.credit(algorithm.annotate(answered(), roles))
    return batch, roles


def test_advantages_are_whitened_once_and_over_chosen_tokens_alone():
    batch, _ = learned(PPO())
    chosen = batch.advantage[batch.mask]
    assert float(chosen.mean()) == pytest.approx(0, abs=1e-6)
    assert float(chosen.std()) == pytest.approx(1, abs=1e-5)
    assert not bool(batch.advantage[~batch.mask].any())
    plain, _ = learned(PPO(whiten=False))
    again = (plain.advantage - plain.advantage[plain.mask].mean()) / plain.advantage[plain.mask].std()
    torch.testing.assert_close(batch.advantage, masked(again, batch.mask), rtol=1e-4, atol=1e-5)


def test_groups_are_not_whitened_on_top():
    batch, _ = learned(GRPO(advantage_std="none"))
    first = batch.advantage[:3].amax(1) + batch.advantage[:3].amin(1)  # a row has one value, and 0 in its padding
    reward = torch.tensor([0.9, 0.0, 0.5])
    torch.testing.assert_close(first, reward - reward.mean())


def test_the_kl_in_the_loss_has_a_gradient():
    gradients = []
    for kl in (None, TokenKl(coef=0.1)):
        algorithm = GRPO(kl=kl)
        batch, roles = learned(algorithm)
        algorithm.loss(batch, roles).total.backward()
        gradients.append(roles.logprob.grad.clone())
    assert (gradients[1] - gradients[0]).abs().max() > 1e-2
