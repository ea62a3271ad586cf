"""Checkpoints with sharded tensors, and what a stranger may make of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

from burnish.checkpoint import manifest
from burnish.checkpoint.files import MANIFEST
from tests.support.checkpoints import IDENTITY, make, state
from tests.support.sharded import full_weight

EXPECTED = {
    "weight": torch.arange(12.0).view(4, 3),
    "half": torch.arange(6).to(torch.bfloat16),
    "number": torch.tensor(2.5),
}


class Payload:
    """Runs a command where it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def forge(path: Path, **changes) -> None:
    """Make the manifest fit the files as they are now, with ``changes``: a stranger can do that, too."""
    content = json.loads((path / MANIFEST).read_text())
    content.pop("sha256")
    for name, about in content["files"].items():
        raw = (path / name).read_bytes()
        about |= {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (path / MANIFEST).write_bytes(manifest.render(content | changes))


def save(folder: Path) -> Path:
    """A checkpoint of one rank."""
    with _weights() as weights:
        return make(folder).save(1, {**state(1), "roles": weights}, identity=IDENTITY, score=None)


def save_first_format(folder: Path) -> Path:
    """The same as earlier versions wrote it."""
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint import save as save_shards

    path = folder / "00000001"
    path.mkdir()
    with _weights() as weights:
        sharded = {f"roles.{name}": value for name, value in weights.items()}
        save_shards(dict(sharded), storage_writer=FileSystemWriter(path / "shards", overwrite=False))
    references = {name: {"lies in the shards": f"roles.{name}"} for name in weights}
    for name, part in {**state(1), "roles": references}.items():
        torch.save(part, path / f"{name}.pt")
    names = [f"{name}.pt" for name in state(1)] + [f"shards/{file.name}" for file in (path / "shards").iterdir()]
    content = {"format": 1, "update": 1, "identity": IDENTITY, "score": None, "files": {name: {} for name in names}}
    (path / MANIFEST).write_bytes(manifest.render(content))
    forge(path)
    return path


@contextmanager
def _weights() -> Iterator[dict[str, torch.Tensor]]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        placements = {"weight": [Shard(0)], "half": [Shard(0)], "number": None}
        weights = {name: distribute_tensor(EXPECTED[name], mesh, where) for name, where in placements.items()}
        assert all(torch.equal(full_weight(value), EXPECTED[name]) for name, value in weights.items())
        yield weights
    finally:
        torch.distributed.destroy_process_group()
