"""One Ray for all tests of this folder, small and on loopback; each test has pools of its own on it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from burnish.options.cluster import PoolOptions, PoolsOptions, RayOptions
from tests.support.ray_runs import SLOW

OPTIONS = RayOptions(address="local", start_timeout=SLOW, call_timeout=SLOW, placement_timeout=60.0)


@pytest.fixture(scope="package")
def connection() -> Iterator[None]:
    """A Ray cluster that Burnish started, and stops."""
    from burnish.runtime.cluster import cluster

    room = PoolsOptions(train=PoolOptions(cpus=0.01))
    init = {"num_cpus": 8, "object_store_memory": 100_000_000}
    with cluster(RayOptions(address="local", init=init, placement_timeout=SLOW), room):
        yield


@pytest.fixture(scope="package")
def pools(connection: None) -> Callable:
    """Makes pools for a with statement: ``pools(train=2, rollout=1)``, with options of Ray as ``options``."""
    from burnish.runtime.cluster import Cluster

    @contextmanager
    def make(*, options: RayOptions = OPTIONS, **processes: int) -> Iterator[dict]:
        sizes = {name: PoolOptions(processes=count, cpus=0.5) for name, count in processes.items()}
        opened = Cluster(options, PoolsOptions(**sizes), started=True)
        opened.open()
        try:
            yield opened.pools
        finally:
            opened.close()

    return make
