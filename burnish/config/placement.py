"""Contradictions between a run's options and its processes: pools, sharding, asynchronous training, profiler."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from burnish.config.memory import has_quantized_weights

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

RAY_SECTIONS = ("pools", "ray")


def placement_complaints(config: RunConfig, given: Collection[str]) -> Iterator[str]:
    """Contradictions, and options of the command line that this run never reads.

    Args:
        config: of the run.
        given: dotted options of the command line.
    """
    yield from _pipeline(config, given)
    if config.runtime == "local":
        for section in RAY_SECTIONS:
            options = [option for option in given if option.split(".")[0] == section]
            if options:
                yield f"{options[0]} is given, but runtime is local, which is a single process; add runtime=ray"
    else:
        yield from _pools(config, given)
    ranks = config.pools.train.size if config.runtime == "ray" else 1
    yield from _sharding(config, ranks, [option for option in given if option.split(".")[0] == "sharding"])
    for section, optimizer in config.optimizers.items():
        if optimizer.name == "adamw" or has_quantized_weights(config):
            continue
        if ranks > 1 and optimizer.name == "adamw_8bit":
            yield (
                f"{section}.name is adamw_8bit, but the {ranks} processes of pools.train hold weights in shards, which "
                f"bitsandbytes doesn't step; set {section}.name=adamw, whose states are shared out"
            )
        elif config.sharding.offload:
            yield (
                f"{section}.name is {optimizer.name}, but sharding.offload keeps every weight in CPU memory as FSDP "
                f"does, which it can't step; set {section}.name=adamw, or leave sharding.offload out"
            )
    yield from _contexts(config, ranks, given)
    size = config.sharding.shard_size
    if ranks > 1 and size is not None and ranks % size:
        yield (
            f"sharding.shard_size is {size}, which does not divide the {ranks} processes of pools.train; give a "
            "divisor, or null to shard over all ranks"
        )


def _sharding(config: RunConfig, ranks: int, given: Sequence[str]) -> Iterator[str]:
    """Options of sharding where nothing is sharded."""
    if ranks == 1:
        read = ("sharding.offload", "sharding.gather", "sharding.reshard_after_forward")
        if unread := [option for option in given if not config.sharding.offload or option not in read]:
            why = "runtime is local" if config.runtime == "local" else "pools.train has one process"
            yield f"{unread[0]} is given, but {why}: a single process is not sharded; leave it out"
    elif given and has_quantized_weights(config):
        yield (
            f"{given[0]} is given, but model.quantization.weights is {config.model.quantization.weights}, and each of "
            f"the {ranks} processes of pools.train holds all quantised weights: nothing is sharded; leave it out"
        )


def _contexts(config: RunConfig, ranks: int, given: Collection[str]) -> Iterator[str]:
    """Groups of ranks that split sequences, where they can't."""
    size = config.sharding.context_parallel
    if size == 1 or has_quantized_weights(config):
        return
    what = f"sharding.context_parallel is {size}"
    if ranks == 1 and "sharding.context_parallel" not in given:
        why = "runtime is local" if config.runtime == "local" else "pools.train has one process"
        yield f"{what}, but {why}, which has nobody to split sequences with; set it to 1"
    elif ranks % size:
        yield f"{what}, which does not divide the {ranks} processes of pools.train; give a divisor, or 1"
    if config.task != "text-to-image":
        yield f"{what}, but only generators split their sequences over ranks; set it to 1"
    elif config.algorithm.needs().reward_gradients:
        yield (
            f"{what}, but {config.algorithm.name} follows gradients of rewards through the steps of sampling, of which "
            "each rank would have those of its own tokens only; set it to 1"
        )


def profiler_complaints(config: RunConfig, given: Collection[str]) -> Iterator[str]:
    """The same for the profiler."""
    profiler = config.profiler
    if profiler is None:
        return
    if profiler.tool != "torch" and config.model.device == "cpu":
        yield f"profiler.tool is {profiler.tool}, which needs a GPU, but model.device is cpu; set profiler.tool=torch"
    if max(profiler.steps) > config.steps:
        yield f"profiler.steps has {max(profiler.steps)}, but the run has only {config.steps} updates (steps)"
    if config.runtime == "local":
        for option in ("profiler.roles", "profiler.ranks", "profiler.worker"):
            if any(f"{one}.".startswith(f"{option}.") for one in given):
                yield f"{option} is given, but runtime is local, which is a single process; leave it out"
        return
    if "profiler.roles" in given:
        for role in ("rollout", "reward"):
            if role in profiler.roles and role not in config.pools.by_name():
                yield f"profiler.roles has {role}, but there is no pool of that name; leave it out, or set pools.{role}"
    if "reward" in profiler.roles and profiler.tool == "torch" and config.scoring.processes:
        yield (
            "profiler.roles has reward, but rewards are scored in subprocesses of the reward workers, which are not "
            "profiled; set scoring.processes=0, or leave it out"
        )


def _pipeline(config: RunConfig, given: Collection[str]) -> Iterator[str]:
    depth = config.pipeline.depth
    if depth and config.runtime == "local":
        yield (
            f"pipeline.depth is {depth}, but runtime is local, and one process can't sample while it trains; set "
            "runtime=ray and pools.rollout.processes, or pipeline.depth=0"
        )
    elif depth and config.pools.rollout is None and config.online:
        yield (
            f"pipeline.depth is {depth}, but there is no rollout pool, and trainer ranks can't sample while they "
            "train; set pools.rollout.processes=1 or more, or pipeline.depth=0"
        )
    if depth and not config.online:
        yield (
            f"pipeline.depth is {depth}, but {config.algorithm.name} trains offline here and samples nothing; leave it "
            "out"
        )
    if depth == 0:
        for option in ("max_staleness", "drop", "timeout"):
            if f"pipeline.{option}" in given:
                yield (
                    f"pipeline.{option} is given, but pipeline.depth is 0, so nothing is sampled ahead; leave it out, "
                    "or set pipeline.depth to 1 or more"
                )


def _pools(config: RunConfig, given: Collection[str]) -> Iterator[str]:
    rollout = config.pools.rollout
    model = config.model.device
    for name, pool in config.pools.by_name().items():
        if name != "reward" and "auto" not in (pool.device, model) and pool.device != model:
            yield (
                f"pools.{name}.device is {pool.device}, but model.device is {model}; leave model.device at auto, which "
                "is the pool's"
            )
    if rollout is not None and not config.online:
        yield (
            f"pools.rollout is given, but {config.algorithm.name} trains offline here and samples nothing; leave it out"
        )
    vllm = getattr(config.rollout, "vllm", None)
    if rollout is not None and vllm is not None and vllm.sleep:
        yield (
            "rollout.vllm.sleep is true, but vLLM runs in the rollout pool, where no trainer needs the memory; leave it"
            " out"
        )
