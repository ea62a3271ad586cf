"""Actor classes that need no model; free of torch where they can be."""

import os
import time

from burnish.runtime.actor import RankInfo
from burnish.utils.errors import ConfigError


class Toy:
    def __init__(self, place: RankInfo, *arguments):
        self.place, self.arguments = place, arguments
        self.calls = 0

    def about(self):
        return self.place, self.arguments

    def add(self, one, other=0):
        self.calls += 1
        return self.place.rank + one + other

    def count(self):
        return self.calls

    def environment(self, *names):
        import sys

        return {name: os.environ.get(name) for name in names} | {"path": sys.path}

    def sleep(self, seconds):
        time.sleep(seconds)
        return self.place.rank

    def sleep_on(self, rank, seconds):
        """As in a collective: everybody else waits for one that never comes."""
        if self.place.rank != rank:
            time.sleep(seconds)
        return self.place.rank

    def refuse_on(self, rank, seconds):
        if self.place.rank == rank:
            raise ConfigError(f"no luck on {rank}")
        time.sleep(seconds)

    def fail_on(self, rank, seconds):
        """As where one GPU breaks, and the others wait for it."""
        if self.place.rank == rank:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        time.sleep(seconds)

    def pair(self, size):
        import numpy as np

        return size, np.arange(size)

    def total(self, array):
        return int(array.sum())

    def odd_error(self):
        raise Unpicklable(1, 2)


class Unpicklable(Exception):
    def __init__(self, one, other):
        super().__init__("neither here nor there")


class Judging:
    """Gives back what it is to judge, and writes its process id down."""

    def __init__(self, place: RankInfo, folder):
        (folder / "pid").write_text(str(os.getpid()))

    def score(self, samples, prompts, given):
        if samples == ["slow"]:
            time.sleep(3.0)
        return samples, prompts, given.update
