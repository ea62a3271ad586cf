"""What is wrong with what is to be recorded of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from burnish.config.run import RunConfig


def recording_complaints(config: RunConfig, given: Collection[str]) -> Iterator[str]:
    """Contradictions, and options of the command line that this run never reads.

    Args:
        config: of the run.
        given: dotted options of the command line.
    """
    profiler = config.profiler
    if profiler is None:
        return
    if profiler.tool != "torch" and config.model.device == "cpu":
        yield (
            f"profiler.tool is {profiler.tool}, which looks at a GPU, but model.device is cpu; set profiler.tool=torch"
        )
    if max(profiler.steps) > config.steps:
        yield f"profiler.steps has {max(profiler.steps)}, but the run has only {config.steps} updates (steps)"
    if config.runtime == "local":
        for option in ("profiler.roles", "profiler.ranks", "profiler.worker"):
            if any(f"{one}.".startswith(f"{option}.") for one in given):
                yield f"{option} is given, but runtime is local: a single process is recorded as a whole; leave it out"
        return
    if "profiler.roles" in given:
        for role in ("rollout", "reward"):
            if role in profiler.roles and role not in config.pools.by_name():
                yield f"profiler.roles has {role}, but there is no pool of that name; leave it out, or set pools.{role}"
    if "reward" in profiler.roles and profiler.tool == "torch" and config.scoring.processes:
        yield (
            "profiler.roles has reward, but the workers of that pool have rewards scored in processes of their own, "
            "which are not recorded; set scoring.processes=0, or leave it out"
        )
