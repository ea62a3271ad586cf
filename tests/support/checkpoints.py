"""What the tests of checkpoints save, and how they look at it."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from burnish.checkpoint.store import CheckpointStore
from burnish.options import CheckpointOptions
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.training.saved import in_memory
from tests.support.tiny_run import TinyRun

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


IDENTITY = {"model": "tiny", "algorithm": "diffusion_nft", "parameters": "0123abcd"}
TENSORS = "tensors/rank-00000.safetensors"  # the file of the first rank, or of the only one


def make(folder: Path, *, ranks: Ranks = SINGLE_RANK, **options) -> CheckpointStore:
    return CheckpointStore(folder, CheckpointOptions(**options), ranks)


def loaded(checkpoint) -> dict:
    """All that a checkpoint holds, its tensors too."""
    return in_memory(checkpoint.load(checkpoint.identity))


def run_of(files: Path, name: str, *options: str) -> TinyRun:
    given = ["algorithm=grpo", "validation.max_prompts=1", "checkpoint.every=1", "checkpoint.keep_last=9", *options]
    return TinyRun(files, "language", "llama", *given, name=f"store/{name}")


def kept(folder: Path) -> list[int]:
    """Updates of which there is a checkpoint."""
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())
