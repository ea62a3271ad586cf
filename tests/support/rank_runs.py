"""Processes that compute together: what a function returns on each of several ranks."""

import gc
import multiprocessing
import random
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from burnish.training.ranks import Ranks, join_ranks


def together(work: Callable[[Ranks, Path], Any], folder: Path, *, size: int = 2, deadline: float = 900) -> list[Any]:
    """What a function returns on each of several ranks, in processes of their own that end in time."""
    port = free_port()
    context = multiprocessing.get_context("fork")  # what this process has imported, they have, too
    processes = [context.Process(target=_rank, args=(work, rank, size, port, folder)) for rank in range(size)]
    gc.collect()
    gc.freeze()  # groups of earlier tests have threads, which a fork lacks and would wait for when it collects them
    try:
        for process in processes:
            process.start()
        gc.unfreeze()
        for process in processes:
            process.join(deadline)
            assert process.exitcode is not None, f"a rank has not ended within {deadline:g} s"
    finally:
        for process in processes:
            process.kill()
    results = [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(size)]
    for result in results:
        assert not isinstance(result, str), result
    return results


def learn(assembly: Any, update: int) -> Any:
    """Metrics of an update."""
    workers = assembly.workers
    with assembly.roles.gathered():
        given = assembly.source.rollout(update)  # where it samples, every rank draws all of it
    batch, _ = workers.compute_advantages(workers.compute_logprobs(given))
    return workers.update(batch, update)


def free_port() -> int:
    """A port that nobody listens on, and that no connection of a test beside this one is given by chance."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):  # below what Linux gives to connections
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def _rank(work: Callable[[Ranks, Path], Any], rank: int, size: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    try:
        ranks = join_ranks(rank, size, "127.0.0.1", port, "cpu", timeout=120)
        result = work(ranks, folder)
    except BaseException:
        result = traceback.format_exc()
    torch.save(result, folder / f"rank-{rank}.pt")
