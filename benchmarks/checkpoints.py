"""Host memory and bytes of a checkpoint's save and load, on 1, 2 and 4 ranks of the CPU, for weights, Adam and an EMA.

Every rank is a process with its shard of the weights. ``peak above`` is that of its own memory above
the rank's share of the state, the largest over ranks; pages of files that are mapped don't count, as they can be given
up. ``read`` are the bytes that all ranks read.

    python -m benchmarks.checkpoints --weights 200 --output checkpoints.json
"""

import multiprocessing
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from burnish.checkpoint.store import CheckpointStore
from burnish.options import CheckpointOptions, OptimizerOptions
from burnish.training.optimizer import Ema, ParameterGroup
from burnish.training.ranks import join_ranks
from burnish.training.sharding import copy_full, local_shard, mesh_of

T = TypeVar("T")
MIB = 2**20
ROWS = 1024  # of 1024 weights
TIMEOUT = 600.0


class Held:
    """What a rank holds: weights, an optimizer and their average."""

    def __init__(self, ranks: Any, matrices: int) -> None:
        from torch.distributed.tensor import DTensor, Shard

        mesh = None if ranks.size == 1 else mesh_of(ranks, None, "cpu")
        self.weights = {}
        for number in range(matrices):
            rows = torch.full((ROWS // ranks.size, 1024), float(number))
            full = rows if mesh is None else DTensor.from_local(rows, mesh, [Shard(0)])
            self.weights[f"layers.{number}"] = nn.Parameter(full)
        self.group = ParameterGroup("actor", self.weights, OptimizerOptions(lr=1e-3), total_steps=10)
        self.ema = Ema(self.weights, 0.9)

    @property
    def share(self) -> int:
        """Bytes of this rank's weights, their moments and their average."""
        return 4 * sum(local_shard(weight).nbytes for weight in self.weights.values())

    def learn(self) -> None:
        """One step, after which the optimizer has a state."""
        for weight in self.weights.values():
            weight.grad = torch.ones_like(weight)
        self.group.step()
        self.group.zero_grad()

    def state(self) -> dict[str, Any]:
        weights = {name: weight.detach() for name, weight in self.weights.items()}
        return {
            "roles": {"policy": weights},
            "groups": {"actor": self.group.state_dict()},
            "ema": self.ema.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        for name, weight in self.weights.items():
            copy_full(weight, state["roles"]["policy"][name])
        self.group.load_state_dict(state["groups"]["actor"])
        self.ema.load_state_dict(state["ema"])

    def sums(self) -> list[float]:
        """Of everything, to see that it came back."""
        moments = [one for some in self.group.optimizers[0].state.values() for one in some.values()]
        kept = [*self.weights.values(), *moments, *self.ema.average.values()]
        return [float(local_shard(value.detach()).double().sum()) for value in kept]


class Meter:
    """Peak of this process's own memory, looked at every millisecond, and bytes that it reads, from here on."""

    def __init__(self) -> None:
        self._before = self._peak = _own_memory()
        self._read, self._begun = _counter("io", "rchar"), time.perf_counter()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._over.wait(0.001):
            self._peak = max(self._peak, _own_memory())

    def stop(self, taken: int = 0) -> dict[str, float]:
        """MiB above what was there and the bytes taken on purpose, MiB read, and seconds."""
        seconds = time.perf_counter() - self._begun
        self._over.set()
        self._watcher.join()
        return {
            "above": (max(self._peak, _own_memory()) - self._before - taken) / MIB,
            "read": (_counter("io", "rchar") - self._read) / MIB,
            "seconds": seconds,
        }


def _own_memory() -> int:
    return (_counter("status", "RssAnon") + _counter("status", "RssShmem")) * 1024


def _counter(file: str, name: str) -> int:
    lines = Path(f"/proc/self/{file}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measure(size: int, folder: Path, matrices: int, *, asynchronous: bool = False) -> dict[str, list[dict[str, Any]]]:
    """What a save and a load take on each of several ranks, in processes of their own."""
    chosen = CheckpointOptions(keep_last=1, keep_best=False, asynchronous=asynchronous)

    def run(work: Callable[[Any, CheckpointStore, int], dict[str, Any]]) -> list[dict[str, Any]]:
        def on_rank(ranks: Any) -> dict[str, Any]:
            _first(ranks, CheckpointStore(folder / "first" / work.__name__, chosen, ranks))
            return work(ranks, CheckpointStore(folder / "measured", chosen, ranks), matrices)

        return processes(size, on_rank)

    saved, loaded = run(_save), run(_load)
    assert [one.pop("sums") for one in saved] == [one.pop("sums") for one in loaded], "something else came back"
    return {"save": saved, "load": loaded}


def _first(ranks: Any, store: CheckpointStore) -> None:
    """Save and load something small: imports and threads of collectives are no part of what is measured."""
    held = Held(ranks, 1)
    held.learn()
    store.save(1, held.state(), identity={}, score=None)
    store.wait()
    held.restore(ranks.first(store.latest).load({}))


def _save(ranks: Any, store: CheckpointStore, matrices: int) -> dict[str, Any]:
    held = Held(ranks, matrices)
    held.learn()
    meter = Meter()
    store.save(1, held.state(), identity={}, score=None)
    store.wait()
    return meter.stop() | {"share": held.share / MIB, "sums": held.sums()}


def _load(ranks: Any, store: CheckpointStore, matrices: int) -> dict[str, Any]:
    meter = Meter()
    held = Held(ranks, matrices)
    checkpoint = ranks.first(store.latest)
    held.restore(checkpoint.load({}))
    return meter.stop(held.share) | {"share": held.share / MIB, "sums": held.sums()}


def processes(size: int, work: Callable[[Any], T]) -> list[T]:
    """What each of several ranks finds, in processes of their own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")  # what this process has imported, they have, too
    results = context.SimpleQueue()

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        results.put((rank, work(join_ranks(rank, size, "127.0.0.1", port, "cpu", TIMEOUT))))

    started = [context.Process(target=run, args=(rank,)) for rank in range(size)]
    for process in started:
        process.start()
    for process in started:
        process.join(TIMEOUT)
        assert process.exitcode == 0, f"a rank ended with {process.exitcode}"
    return [row for _, row in sorted((results.get() for _ in started), key=lambda one: one[0])]


def row(action: str, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """A line of the table."""
    size = len(ranks)
    return {
        "name": f"{action}, {size} rank{'s' * (size > 1)}",
        "share": max(one["share"] for one in ranks),
        "above": max(0.0, *(one["above"] for one in ranks)),
        "read": sum(one["read"] for one in ranks),
        "seconds": max(one["seconds"] for one in ranks),
    }


def main() -> None:
    from benchmarks.setting import options, table, write

    weights = {"type": int, "default": 200, "help": "millions of weights"}
    arguments = options(__doc__.splitlines()[0], weights=weights)
    matrices = 4 if arguments.smoke else max(1, arguments.weights * 1_000_000 // (ROWS * 1024))
    rows = []
    for size in (1, 2) if arguments.smoke else (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(size, Path(folder), matrices)
        rows += [row(action, ranks) for action, ranks in found.items()]
    columns = {"name": "MiB", "share": "share of a rank", "above": "peak above", "read": "read", "seconds": "seconds"}
    print(table(rows, columns))
    write(arguments.output, {"weights": matrices * ROWS * 1024, "rows": rows})


if __name__ == "__main__":
    main()
