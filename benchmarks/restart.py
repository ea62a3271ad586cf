"""Seconds from a lost process to the next update on 64 GPUs, simulated by counted bytes and constants measured here.

    python -m benchmarks.restart
    python -m benchmarks.restart --disk 2

``imports`` and ``meeting`` are CPU-seconds of one process here: of what a worker imports, and of 64 that join a process
group of gloo. ``headers`` are those of one that opens the files of all ranks and reads its slice of each tensor (tiny
ones, as many as the model's weights with two moments). ``model`` and ``shards`` are bytes by the speed of a machine's
disk: the files of the model once for each machine, and its ranks' slices of the checkpoint. ``hashes`` are the
checkpoint's bytes by the slower of disk and SHA-256: on the machines of all ranks, each its part, or on that of the
driver alone. Noticing, CUDA and NCCL take what ``GIVEN`` says.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoints import processes
from benchmarks.setting import options, table, write
from burnish.checkpoint.files import HASHED
from burnish.checkpoint.state_files import Piece, read_tensors
from burnish.checkpoint.state_files import write as write_tensors
from burnish.config.hardware import NODE

GIVEN = {"noticed": 2.0, "CUDA, NCCL": 10.0}  # seconds: two polls of the driver; contexts and first collectives
RANKS = 64
IMPORTS = "import burnish.runtime.workers, burnish.diffusion.assembly, burnish.language.assembly"
# weights that are learned, bytes of all files of the model, and tensors of a network
MODELS = {"Qwen2.5-VL-7B": (8.3e9, 16.6e9, 729), "Qwen-Image": (20.4e9, 57.7e9, 1933)}
STATE = 12  # bytes of a weight in a checkpoint, with both moments
COLUMNS = ("imports", "meeting", "model", "hashes", "headers", "shards")


def used(work: Callable[[], Any]) -> float:
    """CPU-seconds of this process."""
    before = time.process_time()
    work()
    return time.process_time() - before


def imports() -> float:
    """CPU-seconds of a new process that imports what a worker does."""
    command = [sys.executable, "-c", f"{IMPORTS}\nimport time; print(time.process_time())"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def meeting(ranks: int) -> float:
    """The most CPU-seconds of one of several processes, from its fork until all have added up a number."""

    def meet(group: Any) -> float:
        assert group.sum({"ranks": 1.0})["ranks"] == ranks
        return time.process_time()  # of a fork, which begins at 0

    return max(processes(ranks, meet))


def headers(folder: Path, ranks: int, tensors: int) -> float:
    """CPU-seconds of a rank that opens the files of all, and reads its slices of so many small tensors."""
    for rank in range(ranks):
        row = torch.full((1, 4), float(rank))
        pieces = {f"{n}": Piece(row, (rank, 0), (ranks, 4), row.dtype) for n in range(tensors)}
        write_tensors(folder / f"rank-{rank:05d}.safetensors", pieces)

    def restore() -> None:
        own = torch.empty(1, 4)
        for saved in read_tensors(sorted(folder.iterdir())).values():
            saved.read_into(own, (ranks - 1, 0))
        assert own.eq(ranks - 1).all()

    return used(restore)


def hashing() -> float:
    """GB of SHA-256 a second on a core."""
    content = bytes(1 << 28)
    return len(content) / 1e9 / used(lambda: hashlib.sha256(content))


def main() -> None:
    disk = {"type": float, "default": 5.0, "help": "GB/s that a machine reads"}
    arguments = options(__doc__.splitlines()[0], disk=disk)
    ranks, models = (4, {"small": (1e6, 1e6, 10)}) if arguments.smoke else (RANKS, MODELS)
    machines, rate = max(ranks // NODE, 1), min(arguments.disk, HASHED * hashing())
    same = {"imports": imports(), "meeting": meeting(ranks)}
    rows = []
    for name, (weights, files, tensors) in models.items():
        with tempfile.TemporaryDirectory() as folder:
            opening = headers(Path(folder), ranks, 3 * tensors)
        saved = STATE * weights / 1e9
        for who, hashes in (("ranks verify", saved / machines), ("the driver verifies", saved)):
            seconds = GIVEN | same | {
                "model": files / 1e9 / arguments.disk, "hashes": hashes / rate, "headers": opening,
                "shards": saved / machines / arguments.disk,
            }  # fmt: skip
            rows.append({"name": f"{name}, {who}", **seconds, "all": sum(seconds.values())})
    shown = {name: name for name in (*GIVEN, *COLUMNS, "all")}
    print(table(rows, {"name": "seconds", **shown}))
    write(arguments.output, {"GB/s hashed": rate, "rows": rows})


if __name__ == "__main__":
    main()
