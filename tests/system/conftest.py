"""One simulated Ray cluster for all tests that need none of their own, and runs that others are compared with."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import deadly
from tests.support.ray_runs import ADAPTER, DRAWING, SEEING, Fate, Forks, Machines, run

COLOCATED = ["pools.train.processes=2"]
POOLED = ["pools.rollout.processes=2", "pools.reward.processes=1"]
AHEAD = ["pools.rollout.processes=1", "pipeline.depth=1"]
BROADCAST = ["ray.publication.carrier=broadcast"]
# options of runs that nothing befalls, and whether they run on a cluster
REFERENCES = {
    "drawing": (["quickstart", *DRAWING, "algorithm.train_timesteps=2"], False),
    "seeing": (["vlm_quickstart", *SEEING], False),
    "adapter": (["vlm_quickstart", *SEEING, *ADAPTER], False),
    "pooled": (["vlm_quickstart", *SEEING, *POOLED], True),
    "colocated": (["vlm_quickstart", *SEEING, *ADAPTER, *COLOCATED], True),
    "ahead": (["vlm_quickstart", *SEEING, *AHEAD, *BROADCAST], True),
    "adapter ahead": (["vlm_quickstart", *SEEING, *ADAPTER, *AHEAD], True),
}


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    found = Forks(tmp_path_factory.mktemp("forks"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def machines(forks: Forks) -> Iterator[Machines]:
    # simulated machines listen on loopback alone, where Ray's own process looks only if it is told
    from ray._private import ray_constants

    found = Machines(8, forks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
        yield found
    found.close()


@pytest.fixture(scope="session")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the deadly reward, which every run that answers questions has, looks for its orders."""
    return tmp_path_factory.mktemp("orders") / "notes"


@pytest.fixture(scope="session")
def options(notes: Path, machines: Machines) -> Callable[[str], list[str]]:
    """The recipe and the options of a reference."""
    judged = deadly.option(notes)

    def of(name: str) -> list[str]:
        given, beside = REFERENCES[name]
        more = [judged] if given[0] == "vlm_quickstart" else []
        return [*given, *more, *(machines.options() if beside else [])]

    return of


@pytest.fixture(scope="session")
def reference(options: Callable[[str], list[str]], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run that nothing has befallen, made when it is first asked for."""
    found: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in found:
            folder = tmp_path_factory.mktemp(name.replace(" ", "_")) / "run"
            assert run(folder, *options(name)) == 0
            found[name] = folder
        return found[name]

    return of


@pytest.fixture
def fate() -> Iterator[Fate]:
    with pytest.MonkeyPatch.context() as patch:
        yield Fate(patch)
