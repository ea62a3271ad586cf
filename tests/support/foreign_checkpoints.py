"""What a stranger, and earlier versions, may make of a checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint import save as save_shards

from burnish.checkpoint.files import read
from burnish.training.saved import in_memory

MANIFEST = "manifest.json"


class Payload:
    """Makes a folder where it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def forge(path: Path, **changes: Any) -> None:
    """Make the manifest fit the files as they are now, with ``changes``: a stranger can do that, too."""
    content = json.loads((path / MANIFEST).read_text())
    content = {name: value for name, value in content.items() if name != "sha256"} | changes
    for name, about in content["files"].items():
        raw = (path / name).read_bytes()
        about |= {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    (path / MANIFEST).write_text(json.dumps({"sha256": digest} | content, indent=1) + "\n")


def as_earlier_versions_wrote(path: Path) -> None:
    """Write a checkpoint anew in the first format: files of torch.save, and shards of torch.distributed."""
    found = read(path)
    state = in_memory(found.load(found.identity))
    policy = state["roles"]["policy"]
    shards = {f"roles.policy.{name}": value for name, value in policy.items()}
    state["roles"]["policy"] = {name: {"lies in the shards": f"roles.policy.{name}"} for name in policy}
    for name in found.files:
        (path / name).unlink()
    shutil.rmtree(path / "tensors")
    save_shards(dict(shards), storage_writer=FileSystemWriter(path / "shards", overwrite=False), no_dist=True)
    for name, part in state.items():
        torch.save(part, path / f"{name}.pt")
    names = [f"{name}.pt" for name in state] + [f"shards/{file.name}" for file in (path / "shards").iterdir()]
    forge(path, format=1, files={name: {} for name in names})
