"""What rests in CPU memory comes to the GPU when it is used, leaves it again, and changes no number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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
