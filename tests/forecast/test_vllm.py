"""What vLLM takes of a GPU: its weights, a cache for the lengths of the run, and a refusal where there is no room."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from burnish.config import load
from burnish.forecast.counter import Peak
from burnish.forecast.forecast import Forecast, PoolForecast, needed
from burnish.forecast.phases import SAMPLE
from burnish.forecast.vllm import BATCHED, GRAPHS, VllmForecast, vllm_forecast

GIB = 1 << 30
VLLM = ["rollout.engine=vllm", "rollout.vllm.python=vllm-env/bin/python"]
LIMITS = ["data.max_prompt_length=1024", "rollout.max_new_tokens=2048", "rollout.batch_size=128"]


def model(**config: Any) -> Any:
    """A language model of a billion weights, as far as vLLM's memory depends on it."""
    text = SimpleNamespace(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=10, num_attention_heads=16, num_key_value_heads=4,
        vocab_size=32000, max_position_embeddings=100_000,
    )  # fmt: skip
    vars(text).update(config)
    weights = {"a.weight": torch.empty(10**9, device="meta"), "a.lora_A.policy.weight": torch.empty(7, device="meta")}
    network = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda: text), named_parameters=lambda: iter(weights.items())
    )
    return SimpleNamespace(network=network, compute=torch.bfloat16)


def forecast(*options: str, apart: bool = True, **config: Any) -> VllmForecast:
    return vllm_forecast(load("vlm_quickstart", [*VLLM, *LIMITS, *options]), model(**config), apart=apart)


def test_weights_and_cache_are_shared_out():
    one, four, eight = (forecast(f"rollout.vllm.tensor_parallel={size}") for size in (1, 4, 8))
    assert one.weights == 2 * 10**9
    assert four.weights == 2 * 10**9 // 4
    assert one.token == 2 * 10 * 4 * 64 * 2  # keys and values, layers, heads, width, bytes
    assert four.token == eight.token == one.token // 4  # every rank has a head
    assert one.expected == 3072
    assert one.working == BATCHED * (4 * 1024 + 2 * 4096) * 2 + 8 * 128 * 32000 + GRAPHS


def test_what_is_left_is_for_the_cache():
    found = forecast("rollout.vllm.memory_fraction=0.5", "rollout.vllm.max_model_len=3072")
    memory = 24 * GIB
    assert found.room(memory) == 12 * GIB - found.weights - found.working
    assert found.takes(memory) == 12 * GIB
    assert not found.complaint(memory)
    assert "128 of 128 responses" in found.line(memory)
    assert "10 of 128" in forecast("rollout.vllm.kv_cache_gb=0.3").line(memory)  # 31 MiB each


def test_a_cache_without_room_is_refused_with_the_way_out():
    said = forecast("rollout.vllm.memory_fraction=0.1").complaint(24 * GIB)
    assert "nothing left for its cache" in said
    assert "raise rollout.vllm.memory_fraction or rollout.vllm.tensor_parallel" in said
    said = forecast("rollout.vllm.kv_cache_gb=0.5").complaint(24 * GIB)  # a text of 100,000 tokens needs a GiB
    assert "one text of 100000 tokens needs 977 MiB" in said
    assert "raise rollout.vllm.kv_cache_gb, or set rollout.vllm.max_model_len=3072" in said


def pool(vllm: VllmForecast) -> PoolForecast:
    return PoolForecast("train", 1, {SAMPLE: Peak(4 * GIB), "update, backward": Peak(10 * GIB)}, 0, vllm=vllm)


@pytest.mark.parametrize(("sleeps", "most"), [(False, 10), (True, 4)])
def test_a_gpu_that_is_shared_holds_both(sleeps, most):
    options = [] if not sleeps else ["rollout.vllm.sleep=true"]
    found = pool(forecast(*options, "rollout.vllm.memory_fraction=0.5", "rollout.vllm.max_model_len=3072", apart=False))
    assert found.needs_of(24 * GIB) == needed(most * GIB) + 12 * GIB
    assert Forecast((found,)).fits(23 * GIB) is sleeps


def test_vllm_on_gpus_of_its_own_shares_none():
    found = pool(forecast("rollout.vllm.devices='1'", "rollout.vllm.max_model_len=3072", apart=False))
    assert found.needs_of(24 * GIB) == needed(10 * GIB)


@pytest.mark.parametrize(("ranks", "device"), [(1, "auto"), (8, "cpu")])
def test_a_worker_whose_vllm_is_shared_out_keeps_its_copy_in_host_memory(ranks, device):
    config = load("vlm_quickstart", [*VLLM, f"rollout.vllm.tensor_parallel={ranks}"])
    assert config.sampler_config.model.device == device
    assert config.model.device == "auto"
