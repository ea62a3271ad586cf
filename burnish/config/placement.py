"""What is wrong with where a run's workers are to be, and with options of workers that it does not have."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

OF_RAY = ("pools", "ray")  # sections that only runtime=ray reads


def placement_complaints(config: RunConfig, given: Collection[str]) -> Iterator[str]:
    """Contradictions, and options of the command line that this run never reads.

    Args:
        config: of the run.
        given: dotted options of the command line.
    """
    yield from _sampled_ahead(config, given)
    if config.runtime == "local":
        for section in OF_RAY:
            options = [option for option in given if option.split(".")[0] == section]
            if options:
                yield f"{options[0]} is given, but runtime is local, which is a single process; add runtime=ray"
    else:
        yield from _pools(config, given)
    ranks = config.pools.train.size if config.runtime == "ray" else 1
    sharding = [option for option in given if option.split(".")[0] == "sharding"]
    if sharding and ranks == 1:
        why = "runtime is local" if config.runtime == "local" else "pools.train has one process"
        yield f"{sharding[0]} is given, but {why}: a single process holds the networks whole; leave it out"
    size = config.sharding.shard_size
    if ranks > 1 and size is not None and ranks % size:
        yield (
            f"sharding.shard_size is {size}, which does not divide the {ranks} processes of pools.train; give a "
            "divisor, or null to share one copy among all"
        )


def _sampled_ahead(config: RunConfig, given: Collection[str]) -> Iterator[str]:
    depth = config.pipeline.depth
    if depth and config.runtime == "local":
        yield (
            f"pipeline.depth is {depth}, but runtime is local, and one process samples and learns in turn; set "
            "runtime=ray and pools.rollout.processes, or pipeline.depth=0"
        )
    elif depth and config.pools.rollout is None and config.online:
        yield (
            f"pipeline.depth is {depth}, but there is no pool rollout, and the ranks that train can't sample "
            "meanwhile; set pools.rollout.processes=1 or more, or pipeline.depth=0"
        )
    if depth and not config.online:
        yield (
            f"pipeline.depth is {depth}, but {config.algorithm.name} learns from data here, and nothing is sampled; "
            "leave it out"
        )
    if depth == 0:
        for option in ("max_staleness", "drop", "timeout"):
            if f"pipeline.{option}" in given:
                yield (
                    f"pipeline.{option} is given, but pipeline.depth is 0, so that nothing is sampled ahead; leave "
                    "it out, or set pipeline.depth to 1 or more"
                )


def _pools(config: RunConfig, given: Collection[str]) -> Iterator[str]:
    rollout = config.pools.rollout
    if rollout is not None and not config.online:
        yield (
            f"pools.rollout is given, but {config.algorithm.name} learns from data here, and nothing is sampled; leave "
            "it out"
        )
    vllm = getattr(config.rollout, "vllm", None)
    if rollout is not None and vllm is not None and vllm.sleep:
        yield (
            "rollout.vllm.sleep is true, but vLLM runs beside workers of pools.rollout, where nothing learns meanwhile;"
            " leave it out"
        )
    published = [option for option in given if option.startswith("ray.publication")]
    if published and rollout is None:
        yield (
            f"{published[0]} is given, but there is no pool rollout, so that weights stay where they are; leave it "
            "out, or set pools.rollout.processes"
        )
