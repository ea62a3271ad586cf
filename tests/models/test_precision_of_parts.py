"""What rests in which precision, and that forward passes keep no second network beside it."""

from __future__ import annotations

import pytest
import torch

from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.language.ppo import PPO
from burnish.models.flow.loading import load_model
from burnish.options.flow import LoraOptions, ModelOptions, RolloutOptions
from tests.support.factory import tiny_pipeline
from tests.support.universal import load_universal, universal_folder


def kinds(part: torch.nn.Module) -> set[torch.dtype]:
    return {weight.dtype for weight in part.parameters()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, LoraOptions(rank=2)])
def test_only_what_is_trained_rests_in_float32(dtype, lora, tmp_path):
    options = ModelOptions(path=str(tiny_pipeline(tmp_path)), lora=lora, dtype=dtype)
    model = load_model(options, RolloutOptions(batch_size=96, max_sequence_length=4))
    compute = getattr(torch, dtype)
    assert kinds(model.network) == ({torch.float32} if lora is None else {compute})
    assert kinds(model.pipeline.text_encoder) == kinds(model.pipeline.text_encoder_2) == {compute}
    assert kinds(model.pipeline.vae) == {torch.float32}


def test_a_forward_keeps_no_weights_in_its_compute_precision(tmp_path):
    model = load_model(ModelOptions(path=str(tiny_pipeline(tmp_path)), dtype="bfloat16"), RolloutOptions(batch_size=96))
    with model.autocast():
        assert not torch.is_autocast_cache_enabled()
    language = load_universal(universal_folder("gemma3"), dtype="bfloat16")
    for context in (language._autocast(language.device), language.forwards.precision({"ids": torch.zeros(1)})):
        with context:
            assert not torch.is_autocast_cache_enabled()


def test_who_only_samples_needs_the_networks_that_sample():
    needs = FlowGRPO(kl_coef=0.1).needs()
    assert needs.reference
    assert not needs.to_sample().reference
    sampled = DiffusionNFT(sample_with="old").needs()
    assert sampled.to_sample().lagged == ("old",) == (sampled.sampler,)
    needs = PPO().needs()
    assert needs.critic
    assert not needs.to_sample().critic
