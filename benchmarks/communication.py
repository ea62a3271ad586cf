"""Bytes that a GPU receives from others for an update, counted on ranks that are not there, beside what it must.

    python -m benchmarks.communication
    python -m benchmarks.communication --only "7B, all" --options sharding.zero_stage=3

The run's own trainer learns on tensors without values, as the first of 8 or 64 ranks (machines of 8). What FSDP and the
trainer exchange of weights and gradients is counted at the operation as rings send it: of N ranks (N - 1) / N of a
tensor that is gathered or reduced to shares, twice that of one that is summed for all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed import ProcessGroup, get_process_group_ranks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from burnish.config import load
from burnish.config.hardware import NODE
from burnish.plan import measure
from burnish.plan.counter import LiveBytes
from burnish.plan.forecast import half_of, pretended
from burnish.plan.published import CONFIG, Published, located, published

INSIDE, BETWEEN = "inside", "between"  # machines
SENT = {"allgather": 1, "reduce_scatter": 1, "allreduce": 2}  # times that a tensor goes round a ring
LORA = "model.lora={rank: 32}"
SMALL = ["data.train_batch_size=64", "rollout.n=2", "rollout.batch_size=2", "trainer.mini_batch_size=null"]
TEXT = [*SMALL, "data.max_prompt_length=256", "rollout.max_new_tokens=16", "trainer.micro_batch_tokens=512"]
DRAWN = [*SMALL, "trainer.micro_batch_size=1", "rollout.num_inference_steps=4", "ema=null"]
MODELS = {
    "Qwen2.5-VL-7B": ("qwen25_vl/grpo", TEXT), "Qwen3-VL-30B-A3B": ("qwen3_vl/grpo", TEXT),
    "Qwen-Image": ("qwen_image/flow_grpo", DRAWN), "FLUX.1": ("flux/flow_grpo", DRAWN),
}  # fmt: skip


class Exchanged(TorchDispatchMode):
    """Counts the bytes that this rank receives, from its own machine and from others."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        kind = re.sub("^_|_base|_$", "", func._schema.name.partition("::")[2])
        if func.namespace == "c10d" and kind.strip("_") in SENT:
            size = max(one.numel() * one.element_size() for one in tree_leaves(args) if isinstance(one, torch.Tensor))
            group = ProcessGroup.unbox(next(one for one in args if isinstance(one, torch.ScriptObject)))
            ranks = get_process_group_ranks(group)
            where = INSIDE if max(ranks) // NODE == min(ranks) // NODE else BETWEEN
            self.bytes[where] += int(SENT[kind.strip("_")] * size * (len(ranks) - 1) / len(ranks))
        return found


class Repeating(measure.OneMicroBatch):
    """A trainer whose optimizer step learns the same micro-batch so many times."""

    times = 1

    def _micro_batches(self, mini: Any) -> Iterator[Any]:
        micro, weight, _ = next(super(measure.OneMicroBatch, self)._micro_batches(mini))
        yield from ((micro, weight, number == self.times) for number in range(1, self.times + 1))


@dataclass
class Counted:
    """Bytes that a GPU receives for an optimizer step."""

    micro_batches: int
    inside: int  # its machine
    between: int  # machines
    least: int  # of both, in a layout that holds as little twice


def a3b(folder: Path) -> str:
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


def count(recipe: str, options: Sequence[str], size: int, times: Sequence[int]) -> list[Counted]:
    """What the first of ``size`` ranks receives for optimizer steps of so many micro-batches."""
    machines = [f"gpus={NODE}", f"nodes={size // NODE}"]
    with TemporaryDirectory() as scratch:
        config = located(load(recipe, [*machines, *options]), Path(scratch))
        counter, found = LiveBytes(), []
        with pretended(config, size, counter) as (assembly, pretending):
            half = half_of(assembly, counter, pretending)
            measure.load(assembly, counter, half, measure.Rests())
            half.prepare()
            trainer = Repeating.of(assembly.workers, counter, measure.Rests())
            measure.take_few(assembly, counter, half)
            batch, _ = trainer.compute_advantages(trainer.compute_logprobs(measure.collect(assembly, counter, 1)))
            mini = batch.select(range(size))
            for trainer.times in times:
                with Exchanged() as exchanged:
                    trainer.update(mini, 1)
                found.append(Counted(trainer.times, exchanged.bytes[INSIDE], exchanged.bytes[BETWEEN], 0))
            return found
