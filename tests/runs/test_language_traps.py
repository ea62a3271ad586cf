"""Mistakes that others made in training models that see, where no test of a single part would show them."""

from __future__ import annotations

import math

import pytest
import torch

from burnish import load
from burnish.tasks import assemble
from burnish.tasks.language.engine import Encoder
from burnish.training.trainer import Diverged
from tests.support.tiny_run import TinyRun

# three questions: with one picture, with none and with two
ALL = ["model.lora=null", "data.train_batch_size=3", "trainer.mini_batch_size=null", "trainer.epochs=1"]


@pytest.fixture
def assembly_of(files):
    def make(*options: str):
        run = TinyRun(files, "language", "qwen2_5_vl", *ALL, *options, name="traps")
        assembly = assemble(load(str(run.recipe), *run.options))
        assembly.check_data()
        assembly.check()
        return assembly

    return make


def learned_from(assembly):
    return assembly.config.algorithm.credit(assembly.workers.annotate(assembly.source.collect(1)))[0]


def test_a_batch_of_more_prompts_than_there_are_is_told(files, caplog):
    TinyRun(files, "language", "llama", "algorithm=grpo", "data.train_batch_size=7", "steps=1").train()
    assert "data.train_batch_size is 7" in caplog.text
    assert "2.33" in caplog.text


def test_a_prompt_is_processed_once_and_its_pixels_are_stored_once(assembly_of):
    assembly = assembly_of("algorithm=grpo")
    model, seen = assembly.roles.model, []
    assembly.engine.encode = Encoder(model)  # which knows nothing of what was looked at before the run
    encode = model.encode
    model.encode = lambda *parts: seen.append(parts) or encode(*parts)
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


def test_validation_judges_every_question_and_leaves_training_as_it_is(files):
    """Its own temperature, its own seeds, no dropped tail, and no trace in the statistics of rewards."""
    options = ["algorithm=grpo", "algorithm.reward_norm=true", "ema.decay=0.5", "validation.temperature=0"]
    found = []
    for name, validation in (("judged", ["validation.every=1"]), ("alone", ["validation.every=0"])):
        run = TinyRun(files, "language", "qwen2_5_vl", *options, *validation, name=name)
        run.train()
        found.append(([{key: value for key, value in row.items() if not key.startswith(("val-", "alarms"))}
                       for row in run.metrics[1:]], run))  # fmt: skip
    (judged, one), (alone, other) = found
    assert judged == alone
    assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())
    assert all("val-core/default/reward/mean@1" in row for row in one.metrics)
    assert {row["val-aux/num_samples"] for row in one.metrics} == {3}


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_moves_nothing_and_is_counted(assembly_of, where):
    """Neither policy nor critic, average, optimizer nor learning rate."""
    assembly = assembly_of("algorithm=ppo", "trainer.max_skipped_updates=1", "ema.decay=0.5")
    workers, batch = assembly.workers, learned_from(assembly)
    if where == "loss":
        batch.advantage[:] = math.nan
    else:
        assembly.roles.value_head.weight.register_hook(lambda gradient: gradient * math.inf)
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


def test_policy_and_critic_are_clipped_each_by_its_own_bound(assembly_of):
    bounds = ["optimizer.max_grad_norm=1e-3", "critic.optimizer.max_grad_norm=1e-2"]
    assembly = assembly_of("algorithm=ppo", *bounds)
    metrics = assembly.workers.update(learned_from(assembly), 1)
    for group, bound in zip(assembly.workers.groups, (1e-3, 1e-2), strict=True):
        assert metrics[f"{group.name}/grad_norm"] > bound
        gradients = [one.grad.norm() for one in group.parameters.values() if one.grad is not None]
        assert float(torch.stack(gradients).norm()) == pytest.approx(bound, rel=1e-3)


def test_frozen_adapters_stay(files):
    run = TinyRun(files, "language", "llama", "algorithm=grpo", "model.freeze=['*layers.0.*']", "optimizer.lr=0.1")
    run.train()
    adapters = {
        name: value for name, value in run.tensors.items() if name.startswith("roles.policy") and "lora_B" in name
    }
    assert adapters
    assert all(bool(value.any()) for name, value in adapters.items() if "layers.0." not in name)
    assert not any(bool(value.any()) for name, value in adapters.items() if "layers.0." in name)
