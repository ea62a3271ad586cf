"""What rests in CPU memory comes to the GPU when it is used, leaves it again, and changes no number."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch

from burnish.training.sharding import local_shard
from tests.support.pretend_flow import options
from tests.support.pretend_runs import train

pytestmark = pytest.mark.slow


def test_frozen_parts_and_optimizer_states_rest_in_cpu_memory(flow_folder: Path) -> None:
    recipe, given = options(flow_folder, "flow_grpo with vae")
    given = [*given, "ema.decay=0.5"]
    plain = train(recipe, given, device="cuda")
    saved = train(recipe, [*given, *(f"{part}.offload=true" for part in ("model", "optimizer", "ema"))], device="cuda")
    assert saved.metrics == [pytest.approx(told, rel=1e-3, abs=1e-3) for told in plain.metrics]

    def where(tensors: object) -> set[str]:
        return {tensor.device.type for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.ndim}

    for outcome, place in ((plain, "cuda"), (saved, "cpu")):
        pipeline, (group,) = outcome.assembly.roles.model.pipeline, outcome.assembly.workers.groups
        for part in (pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2):
            assert where(part.parameters()) == {place}, "the last thing that ran was a network that is trained"
        states = [
            value for optimizer in group.optimizers for state in optimizer.state.values() for value in state.values()
        ]
        assert where(states) == where(outcome.assembly.ema.average.values()) == {place}
        assert where(outcome.assembly.roles.parameters().values()) == {"cuda"}


def test_what_is_trained_rests_in_cpu_memory_and_comes_block_by_block(flow_folder: Path) -> None:
    recipe, given = options(flow_folder, "flow_grpo kl")
    plain = train(recipe, given, device="cuda")
    # FSDP finds weights that took the place of others, where PyTorch would keep the same objects
    with mock.patch("torch.__future__.get_swap_module_params_on_conversion", return_value=False):
        saved = train(recipe, [*given, "sharding.offload=true"], device="cuda")
    try:
        assert saved.metrics == [pytest.approx(told, rel=1e-4, abs=1e-6) for told in plain.metrics]
        (group,) = saved.assembly.workers.groups
        states = [v for one in group.optimizers for state in one.state.values() for v in state.values()]
        for held in (saved.assembly.roles.parameters().values(), saved.assembly.ema.average.values(), states):
            assert {value.device.type for value in map(local_shard, held)} == {"cpu"}
    finally:
        saved.assembly.close()
