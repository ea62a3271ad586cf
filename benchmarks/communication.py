"""Bytes that a GPU receives from others for an update, counted on ranks that are not there, beside what it must.

    python -m benchmarks.communication
    python -m benchmarks.communication --only 7B --memory 80GB
    python -m benchmarks.communication --only A3B --experts 8

The run's own trainer learns on tensors without values, as the first of 8 or 64 ranks (machines of 8), in the layout
with least traffic whose weights, gradients and optimizer states leave a quarter of a GPU's memory. One and two micro-
batches are counted, of which each further one receives what the second does. What ranks exchange is counted at the
operation as rings send it: of N ranks (N - 1) / N of a tensor that is gathered, exchanged or reduced to shares, twice
that of one that is summed for all. Where ranks share experts, as many tokens choose those of each rank.

``x least`` is beside shards that gather weights once and reduce gradients once. ``x what fits`` is beside the least
that memory allows: where a call's gradients can't wait beside weights, optimizer states and gathered weights, each call
of the network has its own reduced, in bfloat16.

Seconds are those of an H100: the operations of the second micro-batch, for each, beside the bytes, of which none
travels meanwhile. The last column is the speed of a GPU among 64 in percent of that among 8, where each learns as many
micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from benchmarks import setting
from burnish.config import load
from burnish.config.batches import SHARD_SIZE, ZERO_STAGE, layouts, with_sizes
from burnish.config.hardware import NODE, Speed, read_machine
from burnish.plan import measure
from burnish.plan.advice import least_bytes
from burnish.plan.counter import BETWEEN, INSIDE, OPERATIONS
from burnish.plan.fakes import pretend_ranks
from burnish.plan.forecast import Process
from burnish.plan.published import CONFIG, Published, located, published
from burnish.training.trainer import Trainer

LEARNS = {"LoRA": "model.lora={rank: 32}", "all weights": "model.lora=null"}
A3B = "Qwen3-VL-30B-A3B"
TIMES = (1, 4, 16)  # micro-batches of an optimizer step
ROOM = 0.75  # of a GPU's memory for weights, gradients and states
SMALL = ["data.train_batch_size=64", "rollout.n=2", "rollout.batch_size=2", "trainer.mini_batch_size=null"]
TEXT = [*SMALL, "data.max_prompt_length=2048", "rollout.max_new_tokens=2048", "trainer.micro_batch_tokens=4096"]
DRAWN = [*SMALL, "trainer.micro_batch_size=1", "ema=null"]
MODELS = {
    "SD3.5-M": ("sd35/flow_grpo", DRAWN), "Qwen2.5-VL-7B": ("qwen25_vl/grpo", TEXT), A3B: ("qwen3_vl/grpo", TEXT),
    "Qwen-Image": ("qwen_image/flow_grpo", DRAWN), "FLUX.1": ("flux/flow_grpo", DRAWN),
}  # fmt: skip

WEIGHTS = {"SD3.5-M": 2.2e9, "Qwen2.5-VL-7B": 8.3e9, A3B: 31.1e9, "Qwen-Image": 20.4e9, "FLUX.1": 11.9e9}
SPEED = Speed()
RATES = {INSIDE: SPEED.nvlink * 1e9, BETWEEN: SPEED.network * 1e9}  # bytes a second that a GPU receives


def repeating(trainer: Trainer, times: int) -> Any:
    """A context in which an optimizer step learns the same micro-batch so many times."""
    every = trainer._micro_batches

    def same(mini: Any) -> Iterator[Any]:
        micro, weight, _ = next(every(mini))
        yield from ((micro, weight, number == times) for number in range(1, times + 1))

    return patch.object(trainer, "_micro_batches", same)


def describe_a3b(folder: Path) -> str:
    """Describe Qwen3-VL-30B-A3B, of which no recipe is shipped."""
    known = published()["Qwen/Qwen3-VL-8B-Instruct"].about
    text = known["config"]["text_config"] | {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    }  # fmt: skip
    vision = known["config"]["vision_config"] | {"out_hidden_size": 2048}
    config = {**known["config"], "text_config": text, "vision_config": vision}
    about = {**known, "model_type": "qwen3_vl_moe", "config": config}
    Published("Qwen/Qwen3-VL-30B-A3B-Instruct", CONFIG, about).write(folder)
    return f"model.path={folder}"


def row(model: str, learns: str, size: int, memory: int, experts: int) -> Iterator[dict[str, Any]]:
    """What the first of ``size`` ranks receives for an optimizer step, by the number of its micro-batches."""
    recipe, options = MODELS[model]
    given = [f"gpus={NODE}", f"nodes={size // NODE}", *options, "sharding.gather=compute", LEARNS[learns]]
    with TemporaryDirectory() as scratch:
        if model == A3B:
            given += [describe_a3b(Path(scratch) / "model"), f"sharding.expert_parallel={experts}"]
        config = load(recipe, given)
        weights = int(WEIGHTS[model])
        counts = (weights, 0) if config.model.lora is None else (0, weights)
        every = layouts(config)
        layout = next((one for one in every if least_bytes(config, one, *counts) < ROOM * memory), every[-1])
        config = located(with_sizes(config, layout), Path(scratch))
        with ExitStack() as contexts:
            process = Process(config, "train", size, contexts.enter_context(pretend_ranks(size)))
            contexts.enter_context(process.pretended())
            assembly, counter, trainer = process.assembly, process.counter, process.assembly.workers
            measure.take_few(assembly, counter, process.half)
            batch, _ = trainer.compute_advantages(trainer.compute_logprobs(measure.collect(assembly, counter, 1)))
            works = []
            for times in (1, 2):
                phases = measure.phases_of_updates(counter, trainer.groups)
                with counter.span() as span, repeating(trainer, times), phases:
                    trainer.update(batch.select(range(size)), 1)
                works.append(span.work)
            shard = layout[SHARD_SIZE] or size
            network, calls = assembly.roles._networks["policy"], Counter[str]()
            network.register_forward_pre_hook(lambda *_: calls.update([learns]) if torch.is_grad_enabled() else None)
            with repeating(trainer, 1):
                trainer.update(batch.select(range(size)), 1)
            # float32 gradients have twice the size of gathered weights, which are bfloat16 as a call's gradients are
            waits = least_bytes(config, layout, *counts) + 2 * counts[0] // config.sharding.parts < ROOM * memory
            each = [0 if waits else times * calls[learns] for times in TIMES]
            least, *fits = (minimum(network.parameters(), size, passes) for passes in (0, *each))
    first, second = works
    for times, fitting in zip(TIMES, fits, strict=True):
        inside, between = (first[where] + (times - 1) * (second[where] - first[where]) for where in (INSIDE, BETWEEN))
        operations = times * (second[OPERATIONS] - first[OPERATIONS])
        yield {
            "model": model, "learns": learns, "GPUs": size,
            "shards": shard, "stage": layout[ZERO_STAGE] if shard > 1 else "", "micro-batches": times,
            "own machine, GB": round(inside / 1e9, 2), "others, GB": round(between / 1e9, 2),
            "least, GB": round(least / 1e9, 2), "x least": round((inside + between) / least, 2),
            "x what fits": round((inside + between) / fitting, 2),
            "computing, s": round(operations / SPEED.tflops / 1e12, 4),
            "network, s": round(inside / RATES[INSIDE] + between / RATES[BETWEEN], 4),
        }  # fmt: skip


def minimum(weights: Iterable[torch.Tensor], size: int, passes: int = 0) -> float:
    """Bytes that a rank has to receive for an optimizer step, however many micro-batches it has, beside tokens.

    Shards gather bfloat16 weights once and reduce float32 gradients once, or bfloat16 ones of each of ``passes``
    backward passes; groups of them sum their shares' gradients. Where each rank holds all weights, gradients are summed
    alone. Experts of other ranks are neither.
    """
    least, reduced = 0.0, 2 * passes or 4
    for weight in weights:
        mesh: Any = getattr(weight, "device_mesh", None)
        axes = {} if mesh is None else dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
        shard, experts = axes.get("shard", 1), axes.get("experts", 1)
        held, copies = weight.numel() / experts, size // shard // experts
        least += (2 + reduced * weight.requires_grad) * held * (shard - 1) / shard
        least += 2 * 4 * weight.requires_grad * held / shard * (copies - 1) / copies
    return least


def main() -> None:
    arguments = setting.options(
        __doc__.splitlines()[0],
        only={"default": "", "help": "part of a model's name"},
        experts={"default": 1, "type": int, "help": "ranks that share the experts of a mixture"},
        memory={"default": "141GB", "help": "of a GPU: layouts are chosen that leave it room"},
    )
    found: list[dict[str, Any]] = []
    few: dict[Any, float] = {}  # seconds of a step where there are fewest GPUs
    memory = read_machine([f"memory={arguments.memory}"])[0].memory or 0
    models = [name for name in MODELS if arguments.only in name][: 1 if arguments.smoke else None]
    for model, learns, size in product(models, LEARNS, (NODE,) if arguments.smoke else (NODE, 8 * NODE)):
        for one in row(model, learns, size, memory, arguments.experts):
            seconds = one["computing, s"] + one["network, s"]
            fewest = few.setdefault((model, learns, one["micro-batches"]), seconds)
            one["scales, %"] = round(100 * fewest / seconds)
            if not found:
                print(f"| {' | '.join(one)} |\n|{' --- |' * len(one)}")
            print(f"| {' | '.join(map(str, one.values()))} |", flush=True)
            found.append(one)
        setting.write(arguments.output, {"rows": found})


if __name__ == "__main__":
    main()
