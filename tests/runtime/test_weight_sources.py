"""Shards of two ranks in one stream: the same bytes as of one rank, and a few buckets of memory."""

from pathlib import Path

import pytest
import torch

from benchmarks.checkpoints import Meter
from burnish.runtime import weight_transfer
from burnish.runtime.weight_transfer import Receiver, Sender
from burnish.training.sharding import mesh_of
from tests.support import rank_runs

LIMIT = 30.0
LARGE = 96  # MiB


def some(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    shapes = {"embed": (5, 3), "row": (1, 7), "bias": (9,), "block": (8, 2, 3)}  # unevenly cut, and not at all
    return {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()} | {
        "scale": torch.tensor(float(version))
    }


class Store(list):
    """Ray's, in this process."""

    def put(self, array):
        self.append(array.copy())
        return len(self) - 1

    def get(self, place, timeout):
        return self[place]


def sharded(weights: dict[str, torch.Tensor], ranks) -> dict[str, torch.Tensor]:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = mesh_of(ranks, None, "cpu")
    return {
        name: distribute_tensor(value, mesh, [Shard(0)]) if value.ndim else value for name, value in weights.items()
    }


def publish(ranks, folder: Path) -> dict:
    """Two versions, the second in another precision, then the first one again; and what memory a large one takes."""
    store = weight_transfer.ray = Store()
    now = sharded(some(1), ranks)
    sender = Sender(lambda full: now, rank=ranks.rank, bucket_mb=40 / 2**20, versions=2)
    lower = dict.fromkeys(some(1), "bfloat16")
    found = {}
    for name, version, types in (("first", 1, {}), ("second", 2, lower), ("again", 1, {})):
        now = sharded(some(version), ranks) if name != "again" else now
        payload = sender.to_store(version, True, types)
        if ranks.rank == 0:
            target = {k: torch.zeros_like(v, dtype=torch.bfloat16 if types else None) for k, v in some(1).items()}
            receiver = Receiver(target, bucket_mb=40 / 2**20)
            assert receiver.from_store(payload, LIMIT).fingerprint == payload.fingerprint
            assert receiver.switch(version) == payload.fingerprint.digest
            found[name] = target
        else:
            assert payload is None
    large = {"large": torch.ones(LARGE * 1024 // ranks.size, 256)}
    large = {"large": from_local(large["large"], ranks)}
    del store[:]
    store.put = lambda array: None
    sender = Sender(lambda full: large, rank=ranks.rank, bucket_mb=1)
    meter = Meter()
    sender.to_store(1, True, {"large": "bfloat16"})
    return {"found": found, "above": meter.stop()["above"]}


def from_local(rows: torch.Tensor, ranks) -> torch.Tensor:
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(rows, mesh_of(ranks, None, "cpu"), [Shard(0)])


@pytest.mark.cluster
def test_shards_arrive_as_full_weights_in_a_few_buckets_of_memory(tmp_path):
    first, second = rank_runs.together(publish, tmp_path, deadline=120)
    for name, version in (("first", 1), ("second", 2), ("again", 1)):
        for key, expected in some(version).items():
            value = first["found"][name][key]
            assert torch.equal(value, expected.to(value.dtype)), (name, key)
    assert first["found"]["second"]["embed"].dtype == torch.bfloat16
    assert max(first["above"], second["above"]) < 16 < LARGE / 4  # MiB: buckets of 1, and threads
