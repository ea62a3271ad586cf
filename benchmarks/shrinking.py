"""What a process of a run holds or moves of batches, caches and weights, in MiB: counted, no figure is a time.

    python -m benchmarks.shrinking --output shrinking.json

``all`` is what there is, and ``held`` the most that a process has of it at once. Loading and checkpoints have commands
of their own (``benchmarks.loading``, ``benchmarks.checkpoints``), and networks in training are forecast.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.checkpoints import Meter, processes
from benchmarks.loading import Peak
from burnish.diffusion.algorithms.policy_gradient import FlowGRPO
from burnish.diffusion.batches import StepBatch
from burnish.diffusion.rollouts import ROWS, policy_vs_reference_norm
from burnish.language.layers import Cache
from burnish.plan.counter import LiveBytes
from burnish.runtime import transfer
from burnish.runtime.transfer import PromptNumbers
from burnish.runtime.weights import Sender
from burnish.training.exchange import bring, kept_by_owners
from burnish.training.ranks import shares
from burnish.training.sharding import mesh_of
from burnish.training.trainer import rank_micro_batches
from burnish.types.batch import Batch
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.rollout import Denoising, Requests, Scored, Scores

MIB = 2**20
STEPS, STATE = 10, (16, 64, 64)  # of denoising, and a latent of 512 x 512 pixels: 256 KiB
Row = dict[str, Any]


@dataclass
class First:
    """The first of several ranks, whose micro-batches are as many as its own."""

    size: int
    rank: int = 0

    def max(self, value: int) -> int:
        return value


@dataclass(kw_only=True)
class Means(Batch):
    """Numbers that a rank has computed for rows of a batch."""

    mean: Tensor  # [B, ...]


@dataclass
class Request:
    """Prompts that a rollout worker is asked about."""

    prompts: list[Any]


def row(name: str, everything: float, held: float) -> Row:
    return {"name": name, "all": everything / MIB, "held": held / MIB}


def trajectories(rows: int) -> StepBatch:
    """A batch of denoising steps to learn from."""
    path = torch.randn(rows, STEPS + 1, *STATE)
    times = torch.linspace(1, 0, STEPS + 1)
    groups = torch.arange(rows) % 8
    prompts = [Prompt(text=f"{i}") for i in groups.tolist()]
    numbers, nothing = torch.ones(rows, STEPS), torch.zeros(rows, STEPS, 0)
    trace = Denoising(
        conditioning=Requests(prompts=prompts, height=None, width=None, steps=STEPS),
        latents=path[:, -1], state=path[:, :-1], next_state=path[:, 1:],
        time=times[:-1].expand(rows, -1).contiguous(), time_next=times[1:].expand(rows, -1).contiguous(),
        logprob=numbers, node=torch.zeros(rows, STEPS, dtype=torch.long), schedule=times,
    )  # fmt: skip
    reward = torch.zeros(rows)
    scores = Scores(reward=reward, missing=reward.bool(), components=reward[:, None], names=("a",), notes=[""] * rows)
    scored = Scored(
        prompts=prompts, group=groups, sample=torch.arange(rows), trace=trace, scores=scores,
        update=1, version=0, seed=0,
    )  # fmt: skip
    return StepBatch(
        scored=scored, advantage=numbers, weight=numbers, trained=numbers.bool(), old=numbers, learner=numbers[:, :0],
        old_mean=nothing, reference_mean=nothing,
    )  # fmt: skip


def batch_of_a_rank(rows: int, size: int) -> Row:
    """Samples that another process has stored, read to learn from by one of ``size`` ranks."""

    def read(_: Any) -> tuple[int, float]:
        batch = trajectories(rows)
        packed = transfer.pack(batch.scored.trace.put_away())
        stored: Any = transfer
        stored.ray = type("Store", (), {"get": staticmethod(lambda reference, timeout: packed)})
        batch.scored.trace = transfer.Stored(reference=None, rows=rows).read(seconds=1)
        ranks: Any = First(size)
        with Peak() as peak:
            for part, *_ in rank_micro_batches(FlowGRPO(), batch, 4, ranks):
                part.to("cpu")
        return sum(array.nbytes for array in packed.heavy), peak.above()[1] * MIB

    ((everything, held),) = processes(1, read)
    return row(f"samples, read by one of {size} ranks", everything, held)


def means_of_a_rank(rows: int, size: int) -> Row:
    """What a reference makes of a batch, computed by all ranks and learned by each in its share."""
    parts = list(Means(mean=torch.zeros(rows, 1)).split(4))

    def learn(ranks: Any) -> float:
        meter = Meter()
        found = Means(mean=kept_by_owners(ranks, lambda part: torch.ones(len(part), *STATE), parts))
        own = bring(found, ranks, shares([1] * rows, ranks.size))
        for part in own.split(4):
            part.to("cpu")
        return meter.stop()["above"] * MIB

    return row(f"means of a reference, on each of {size} ranks", rows * 2**18, max(processes(size, learn)))


def driver(images: int) -> Row:
    """What the driver sends for an update on prompts with images of a megabyte inside of their records."""
    prompts = [Prompt(text=f"{i}", images=(Media.encoded(bytes([i]) * MIB),)) for i in range(images)]
    sent = len(pickle.dumps(PromptNumbers(lambda: prompts).numbered(Request(prompts))))
    return row(f"{images} prompts with images, through the driver", images * MIB, sent)


def publication(size: int, millions: int) -> Row:
    """Weights that are sent to rollout workers in bfloat16: what that takes a rank beside its float32 share."""
    rows = millions * 10**6 // 1024 // size

    def send(ranks: Any) -> float:
        from torch.distributed.tensor import DTensor, Shard

        mesh = mesh_of(ranks, None, "cpu")
        layers = {f"{i}": DTensor.from_local(torch.ones(rows // 16, 1024), mesh, [Shard(0)]) for i in range(16)}
        little = {"0": DTensor.from_local(torch.ones(8, 1024), mesh, [Shard(0)])}
        for weights in (little, layers):  # threads and imports are no part of what is measured
            meter = Meter()
            sender = Sender(lambda full, weights=weights: weights, rank=ranks.rank, bucket=4 * MIB)
            sender._send = lambda content: ""
            sender.broadcast(1, sender.entries(True, dict.fromkeys(weights, torch.bfloat16)))
        return meter.stop()["above"] * MIB

    held = max(processes(size, send))
    return row(f"weights, sent by {size} ranks in buckets of 4 MiB", 4 * rows * size * 1024, held)


def decoder(rows: int) -> list[Row]:
    """Keys and values of a model of 7 B weights for prompts of 1,024 tokens, and responses of up to 2,048."""
    whole = 2 * 28 * rows * 4 * 128 * 2 * (1024 + 2048) * 3 // 2
    found = []
    with LiveBytes() as counter:
        cache = Cache(
            layers=28, rows=rows, pairs=4, longest=3072, width=128, dtype=torch.bfloat16, device=torch.device("meta")
        )
        cache.enter(torch.empty(28, 2, 4, 1024, 128, dtype=torch.bfloat16, device="meta"), rows, 1024)
        for written in (256, 2048):
            with counter.phase(str(written)):
                while cache.end < 1024 + written:
                    cache.advance()
            found.append(row(f"keys and values after {written:,} tokens", whole, counter.peaks[str(written)].total))
        with counter.phase("kept"):
            cache.keep(range(0, rows, 2))
        found.append(row("keys and values while half of the rows leave", whole, counter.peaks["kept"].total))
    return found


def forward_of_a_metric() -> Row:
    """The forward passes that watch how velocities grow, one image at a time as rollout.batch_size says."""
    from benchmarks.setting import Burnish, sd3

    ours = Burnish(
        sd3(4, 4, 32), FlowGRPO(kl_coef=0.1), text_tokens=64, guidance=1.0, rollout_batch=1, micro_batch=4, steps=2
    )
    scored, peaks = ours.rollout(ROWS, 1, 1), []
    for size in (ROWS, 1):
        with LiveBytes() as counter, counter.phase("metric"):
            policy_vs_reference_norm(ours.roles, scored, size)
        peaks.append(counter.peaks["metric"].total)
    return row(f"activations of a metric on {ROWS} samples", *peaks)


def main() -> None:
    from benchmarks.setting import options, table, write

    arguments = options(__doc__.splitlines()[0])
    small = arguments.smoke
    rows = 16 if small else 128
    found: list[Callable[[], Row | list[Row]]] = [
        *(lambda size=size: batch_of_a_rank(rows, size) for size in (1, 2, 4, 8)),
        *(lambda size=size: means_of_a_rank(8 * rows, size) for size in ((1, 2) if small else (1, 2, 4))),
        lambda: driver(4 if small else 128),
        *(lambda size=size: publication(size, 4 if small else 64) for size in ((2,) if small else (2, 4))),
        lambda: decoder(256),
        forward_of_a_metric,
    ]
    lines: list[Row] = []
    for measure in found:
        one = measure()
        lines += one if isinstance(one, list) else [one]
    print(table(lines, {"name": "MiB", "all": "all", "held": "held"}))
    write(arguments.output, {"rows": lines})


if __name__ == "__main__":
    main()
