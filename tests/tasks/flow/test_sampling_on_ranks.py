"""Ranks that sample gather the network that samples, then, one after the other, those that are compared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.config import load
from burnish.rollout.requests import RolloutRequest, join, split
from burnish.tasks import assemble
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.utils.errors import Cancelled
from tests.support.rank_runs import together

OPTIONS = [
    "steps=2", "data.train_batch_size=3", "rollout.n=2", "rollout.batch_size=2", "scoring.processes=0",
    "rewards.ocr=null", "rewards.jpeg_compressibility.weight=1", "algorithm=flow_grpo", "algorithm.kl_coef=0.1",
    "validation.max_prompts=3",
    "optimizer.schedule_updates=null", "rollout.num_inference_steps=3", "algorithm.window={kind: random, size: 1}",
]  # fmt: skip
GROWTH = ("actor/velocity_norm_ratio", "actor/velocity_distance")


def moved(assembly: Any) -> None:
    """Have the policy differ from the reference, by the same on all ranks."""
    with torch.no_grad():
        for weight in assembly.roles.parameters().values():
            weight.add_(0.01)


def on_ranks(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """What a rank samples, with which networks gathered; then with nothing to do, cancelled, and failing."""
    found: dict[str, Any] = {}
    for name, lora in (("all", "null"), ("adapters", "{rank: 4}")):
        assembly = assemble(load("quickstart", [*OPTIONS, f"model.lora={lora}"]), ranks)
        moved(assembly)
        roles, model = assembly.roles, assembly.roles.model
        gathered: set[tuple[str, ...]] = set()
        predict, condition, full = model.predict, model.condition, []

        def watched(*args: Any, predict: Any = predict, roles: Any = roles, seen: Any = gathered, **more: Any) -> Any:
            seen.add(tuple(name for name, network in roles.shards.networks.items() if network.is_gathered))
            return predict(*args, **more)

        def encoding(*given: Any, condition: Any = condition, roles: Any = roles, full: Any = full, **more: Any) -> Any:
            full += [name for name, network in roles.shards.networks.items() if network.is_gathered]
            return condition(*given, **more)

        def failing(*given: Any, **more: Any) -> Any:
            raise ValueError("a text can't be encoded")

        model.predict, model.condition = watched, encoding
        chunk = split(given(assembly), ranks.size)[ranks.rank]
        found[name] = assembly.generate(chunk), gathered
        if name == "adapters":
            found["evaluated"] = assembly.evaluate(None, n=2)
        assert full == []  # text encoders need the memory that full weights take
        if ranks.rank:
            model.condition = failing
            with pytest.raises(ValueError, match="can't be encoded"):
                assembly.generate(chunk)
            model.condition = condition
            assert assembly.generate(None) is None
            assembly.stop = lambda: True
            with pytest.raises(Cancelled):
                assembly.generate(chunk)
            assembly.stop = lambda: False
            assembly.rollout_worker.scorer = None
            with pytest.raises(AttributeError):
                assembly.generate(chunk)
        else:
            assert [len(assembly.generate(chunk)) for _ in range(4)] == [len(chunk)] * 4
        assert not any(network.is_gathered for network in roles.shards.networks.values())
    return found


def given(assembly: Any) -> RolloutRequest:
    """All that an update asks for."""
    request: RolloutRequest = assembly.prompt_schedule.request(1, 0, Counter())
    return request


@pytest.mark.cluster
def test_two_ranks_sample_as_one_and_hold_one_full_network_at_a_time(tmp_path: Path) -> None:
    both = together(on_ranks, tmp_path, deadline=300)
    for name, lora in (("all", "null"), ("adapters", "{rank: 4}")):
        alone = assemble(load("quickstart", [*OPTIONS, f"model.lora={lora}"]), SINGLE_RANK)
        moved(alone)
        expected = alone.generate(given(alone))
        scored = join([found[name][0] for found in both])
        assert torch.equal(scored.trace.latents, expected.trace.latents)
        assert torch.equal(scored.scores.reward, expected.scores.reward)
        for metric in GROWTH:
            assert scored.metrics[metric] == pytest.approx(expected.metrics[metric], rel=1e-6)
            assert scored.metrics[metric] not in (0.0, 1.0)
        for _, gathered in (found[name] for found in both):
            assert gathered == {("policy",), ("reference",)} if name == "all" else {("policy",)}
    assert both[0]["evaluated"] == both[1]["evaluated"] == alone.evaluate(None, n=2)
