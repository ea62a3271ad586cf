"""Mistakes that others made in training, where no test of a single part would show them."""

import pytest
import torch

from tests.support.tiny_run import TinyRun


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


def test_frozen_adapters_stay(files):
    run = TinyRun(files, "language", "llama", "algorithm=grpo", "model.freeze=['*layers.0.*']", "optimizer.lr=0.1")
    run.train()
    adapters = {
        name: value for name, value in run.tensors.items() if name.startswith("roles.policy") and "lora_B" in name
    }
    assert adapters
    assert all(bool(value.any()) for name, value in adapters.items() if "layers.0." not in name)
    assert not any(bool(value.any()) for name, value in adapters.items() if "layers.0." in name)


ONE = ["validation.before=false", "validation.every=null", "trainer.mini_batch_size=null", "trainer.epochs=1"]


def test_an_untrained_policy_has_not_grown_and_signal_and_noise_are_logged(files):
    run = TinyRun(files, "generators", "flux", "algorithm=flow_grpo", "algorithm.kl_coef=0.1", *ONE)
    run.train("steps=2")
    first, *_, last = (row for row in run.metrics if "actor/loss" in row)
    assert first["actor/velocity_norm_ratio"] == pytest.approx(1.0)
    assert (first["actor/velocity_distance"], last["actor/velocity_distance"] > 1e-3) == (0.0, True)
    for row in (first, last):
        assert row["variance_proxy/proxy1_signal_strength"] == pytest.approx(row["actor/grad_norm"] ** 2)
        assert row["variance_proxy/expected_w"] > 0
    plain = TinyRun(files, "generators", "flux", "algorithm=flow_grpo", "model.lora=null", *ONE)
    plain.train("steps=1")
    assert not [name for name in plain.metrics[-1] if "velocity" in name], "nothing to compare it with"
