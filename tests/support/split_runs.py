"""What two neighbours do that split the sequences of their samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.forecast.counter import LiveBytes
from burnish.training.ranks import Ranks
from burnish.types.rollout import Prompt
from tests.support.flow_bench import WINDOW, Bench
from tests.support.rank_runs import PICTURE, SPLIT, SPLIT_RESUMED, bench_of, resume, train
from tests.support.sharded import full_weight

# the others show once more what these show
NAMES = tuple(SPLIT) if os.environ.get("BURNISH_THOROUGH") else ("flux split", "experts split, adapters")
NORMS = ("norm_q", "norm_k", "norm_added_q", "norm_added_k")


def split_runs(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """What becomes of every run in which two neighbours split sequences, and of one that a process alone has begun."""
    ranks, results = ranks.in_contexts(2), {}
    for name in NAMES:
        results[name] = train(name, folder / "pipeline", ranks, folder)
    for name in SPLIT_RESUMED:
        results[f"{name}, resumed"] = resume(name, folder / "pipeline", ranks, folder, size=1)
    pipeline = folder / "pipeline"
    more = {"tokens": tokens_seen(pipeline, ranks), "half": gradients_in_half(pipeline, ranks)}
    return results | more | {"bytes": activations(pipeline, ranks)}


def trained(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """What becomes of the runs where there are two such groups, which share out the rows."""
    ranks = ranks.in_contexts(2)
    return {name: train(name, folder / "pipeline", ranks, folder) for name in NAMES}


def tokens_seen(pipeline: Path, ranks: Ranks) -> set[int]:
    """Lengths of the sequences that the first layers of FLUX's attention see."""
    bench, found = bench_of("flux split", pipeline, ranks), set()
    attention = bench.roles.model.network.transformer_blocks[0].attn
    for layer in (attention.to_q, attention.add_q_proj):
        layer.register_forward_pre_hook(lambda _, given: found.add(given[0].shape[1]))
    bench.collect()
    return found


def activations(pipeline: Path, ranks: Ranks) -> int:
    """Bytes that a forward pass with gradients keeps for pictures of 1024 tokens, as they are allocated."""
    given: dict[str, Any] = {"height": 64, "width": 64, "length": 16}
    bench = Bench(pipeline / "flux", FlowGRPO(window=WINDOW), lora=False, ranks=ranks, **given)
    prompts = [Prompt(text="one")] * 2
    found = bench.engine.condition(prompts)
    x, time = torch.zeros(2, *bench.engine.latent_shape(prompts[0])), torch.full((2,), 0.5)
    with LiveBytes() as counter:
        before = counter.live
        velocity = bench.roles.policy(x, time, found, found)
        kept = counter.live - before
    velocity.sum().backward()
    return kept


def gradients_in_half(pipeline: Path, ranks: Ranks) -> dict[str, Tensor]:
    """Gradients of a batch in bfloat16, with queries and keys in float32, as autocast normalises them on GPUs."""
    bench = Bench(pipeline / "flux", FlowGRPO(window=WINDOW), lora=False, dtype="bfloat16", ranks=ranks, **PICTURE)
    for name, layer in bench.roles.model.network.named_modules():
        if name.endswith(NORMS):
            layer.register_forward_hook(lambda _, given, made: made.float())
    batch, _ = bench.algorithm.credit(bench.workers.annotate(bench.collect()))
    bench.workers.update(batch, 1)
    weights = bench.roles.parameters()
    return {name: full_weight(weight.grad).clone() for name, weight in weights.items() if weight.grad is not None}
