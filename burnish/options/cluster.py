"""Options of several processes: resource pools, the cluster, sampling ahead of training, and sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from burnish.options import ON_CPU, SAMPLED, SCORED, Count, NonNegative, Positive, Rules, Seconds, Threads, Whole
from burnish.registry import MayChange, ReadIf, options

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

STARTED = ("num_cpus", "num_gpus", "resources", "labels", "object_store_memory")  # of a cluster that ray.init starts


RANKS = ReadIf("shardable", why="{run.unsharded}: nothing is sharded")
SHARDED = ReadIf(lambda section, run: run.shards or section.offload, why="{run.unsharded}: nothing is sharded")
CASTS = ReadIf(
    lambda section, run: section.gather == "exact" or run.model.dtype != "float32",
    why="model.dtype is float32, as weights are stored",
)


@options
class PoolOptions:
    """A resource pool: its processes, and the CPUs and GPUs of each."""

    nodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Machines of the pool."""
    processes: Threads = 1
    """Processes per machine."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the pool; auto uses GPUs if the cluster has any."""
    cpus: Positive = 1.0
    """CPUs per process, as Ray counts them; fractions are allowed."""
    gpus: NonNegative | None = None
    """GPUs per process: an integer, or a fraction of a shared one; null is 1 on cuda and 0 on cpu."""

    def contradictions(self, run: RunConfig) -> Rules:
        gpus = self.gpus or 0.0
        return [
            (
                (gpus and self.device == "cpu") or (self.gpus == 0 and self.device == "cuda"),
                f"gpus is {gpus:g}, but device is {self.device}; leave one of them out",
            ),
            *(
                (value > 1 and value != int(value), f"{name} is {value:g}; above 1 it must be a whole number")
                for name, value in (("cpus", self.cpus), ("gpus", gpus))
            ),
        ]

    @property
    def size(self) -> int:
        """Number of processes of the pool."""
        return self.nodes * self.processes


@options
class PoolsOptions:
    """Resource pools of runtime=ray."""

    train: PoolOptions = Field(default_factory=PoolOptions)
    """Trainer ranks."""
    rollout: Annotated[PoolOptions | None, SAMPLED] = None
    """Rollout workers; null samples on the trainer ranks (colocated)."""
    reward: Annotated[PoolOptions | None, SCORED] = None
    """Reward workers; null scores in the processes that sample."""

    def by_name(self) -> dict[str, PoolOptions]:
        """The pools of this run."""
        every = {"train": self.train, "rollout": self.rollout, "reward": self.reward}
        return {name: pool for name, pool in every.items() if pool is not None}

    def contradictions(self, run: RunConfig) -> Rules:
        vllm, model, pools = getattr(run.rollout, "vllm", None), run.model.device, self.by_name()
        if run.runtime == "local":
            return []
        return [
            *(
                (
                    name != "reward" and "auto" not in (pool.device, model) and pool.device != model,
                    f"pools.{name}.device is {pool.device}, but model.device is {model}; leave model.device at auto, "
                    "which is the pool's",
                )
                for name, pool in pools.items()
            ),
            (
                self.rollout is not None and vllm is not None and vllm.sleep,
                "rollout.vllm.sleep is true, but vLLM runs in the rollout pool, where no trainer needs the memory; "
                "remove it",
            ),
        ]


@options
class RayOptions:
    """Ray cluster of runtime=ray."""

    address: str | None = None
    """HOST:PORT of a running cluster, or local for one that the run starts on this machine and stops; null uses
    RAY_ADDRESS if it is set, and local otherwise."""
    init: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of ray.init, by name. runtime_env is the environment of the workers: env_vars, working_dir, pip
    and so on."""
    placement_timeout: Seconds = 300.0
    """Seconds to wait until the cluster has free resources for the pools: at the start, and after a machine is lost."""
    start_timeout: Seconds = 900.0
    """Seconds that workers may take to start and load."""
    call_timeout: Seconds = 3600.0
    """Timeout of a call to a worker in seconds, and of what it is waited for that is done ahead."""
    max_restarts: Whole = 3
    """Restarts of a pool's workers (dead, hanging, or with a failed device) within a day before the run stops."""

    def contradictions(self, run: RunConfig) -> Rules:
        runs = self.address not in (None, "local")
        return [
            ("address" in self.init, "ray.init.address is given; use ray.address for that"),
            (
                str(self.address).startswith("ray://"),
                f"ray.address is {self.address}, a Ray Client address; start the run on a machine of the cluster or "
                "with `ray job submit`, and give HOST:PORT",
            ),
            *(
                (runs, f"ray.init.{name} has no effect on a running cluster ({self.address}); remove it")
                for name in STARTED
                if name in self.init
            ),
        ]

    @property
    def runtime_env(self) -> Any:
        """The environment of the workers."""
        return self.init.get("runtime_env", {})


@options
class AsyncRolloutOptions:
    """How far sampling runs ahead of training."""

    depth: Annotated[int, Field(ge=0, le=1000)] = 0
    """Batches that may be sampled ahead of the one that is trained on: 0 is synchronous, 1 is one-step-off-policy, more
    is fully asynchronous. More than 0 needs runtime=ray."""
    max_staleness: Annotated[Whole | None, MayChange(), ReadIf("depth")] = None
    """Most policy updates between the weights that sampled a batch and those that train on it; a batch that would
    become older is not started; those of a checkpoint are trained on, however old. null uses depth, and one more with
    partial."""
    partial: Annotated[Count | None, ReadIf("depth")] = None
    """Partial rollouts of language models: tokens that a response gets with a batch. A longer one is put aside and goes
    on with the next batch, under newer weights; its prompt is trained on once all of its responses are complete.
    max_staleness - depth times at most, then it is written to its end. null writes all responses to their ends."""

    @property
    def staleness(self) -> int:
        """Most policy updates between the weights that wrote a token and those that train on it."""
        return self.depth + (self.partial is not None) if self.max_staleness is None else self.max_staleness

    @property
    def lag(self) -> int:
        """Policy updates between sampling and training weights in the steady state."""
        return self.depth if self.max_staleness is None else min(self.depth, self.max_staleness)

    def contradictions(self, run: RunConfig) -> Rules:
        depth, what = self.depth, f"async_rollout.depth is {self.depth}, but"
        partial, writes = self.partial is not None, f"async_rollout.partial is {self.partial}, but"
        return [
            (
                partial and self.staleness <= depth,
                f"{writes} async_rollout.max_staleness is {self.max_staleness}: a response that goes on is trained on "
                f"after more updates; set async_rollout.max_staleness={depth + 1} or more, or remove it",
            ),
            (
                partial and run.task == "text-to-image",
                f"{writes} {run.algorithm.name} trains on images, which are not put aside; remove it",
            ),
            (
                depth and run.runtime == "local",
                f"{what} runtime is local, and one process can't sample while it trains; set runtime=ray and "
                "pools.rollout.processes, or async_rollout.depth=0",
            ),
            (
                depth and run.runtime == "ray" and run.online and run.pools.rollout is None,
                f"{what} there is no rollout pool, and trainer ranks can't sample while they train; set "
                "pools.rollout.processes=1 or more, or async_rollout.depth=0",
            ),
            (
                depth and not run.online,
                f"{what} {run.algorithm.name} trains offline here and samples nothing; remove it",
            ),
        ]


@options
class ShardingOptions:
    """FSDP2 sharding over the trainer's ranks; a single rank is not sharded, and may only offload.

    Trained weights, gradients and optimizer states are float32, whatever the precision of the forward pass."""

    gather: Annotated[Literal["exact", "compute"], SHARDED, CASTS] = "exact"
    """Precision of what ranks exchange: exact keeps that of the stored weights and float32 for gradients, with the
    numbers of a single rank; compute casts weights to model.dtype first, and gradients that are reduced with every
    micro-batch, too: half the traffic with bfloat16."""
    zero_stage: Annotated[Literal["auto", 1, 2, 3], SHARDED] = "auto"
    """What ranks hold in shards while they learn, besides optimizer states. 3: weights, which every block gathers for
    its forward and again for its backward pass, and gradients, reduced with every micro-batch (those of adapters once
    for an optimizer step). 2: weights stay gathered through the micro-batches of an optimizer step. 1: gradients stay,
    too, and are reduced once: the least traffic. auto is the lowest for which the forecast finds room."""
    offload: bool = False
    """Keep weights, gradients and optimizer states in CPU memory, and copy a block's weights to the GPU while it
    runs; on one GPU, too. Samples are made with the full network on the GPU."""
    shard_size: Annotated[Literal["auto"] | Count | None, RANKS] = "auto"
    """Ranks per shard group; the weights are replicated across groups (HSDP). null shards over all ranks; 1 has each
    rank hold everything. auto is the smallest of these that the forecast finds room for: 1 where adapters are trained,
    the ranks of a machine, all."""
    context_parallel: Annotated[Count, RANKS] = 1
    """Neighbouring ranks that split the token sequences of a micro-batch (Ulysses context parallelism): activations per
    rank shrink by as much, and each such group learns its own rows. For long sequences; a divisor of the number of
    ranks, and no more than the network's attention heads. 1 splits nothing."""
    expert_parallel: Annotated[Count, RANKS] = 1
    """Neighbouring ranks that share the experts of every layer of a mixture: each holds as many of them, and the tokens
    of all travel to the experts that they chose, where each rank would gather all experts of a layer. For language
    models; a divisor of the number of ranks and of the experts of a layer. 1 gathers experts as other weights."""
    tensor_parallel: Annotated[Count, RANKS] = 1
    """Neighbouring ranks that hold a slice of every matrix of a layer each, by the library's plan for the class, and
    work on the same rows (Megatron's tensor parallelism): for layers that no GPU can gather, or batches of fewer rows
    than ranks. A divisor of the number of ranks, and of attention and key-value heads. 1 splits no layer."""

    @property
    def replicates(self) -> bool:
        """Whether every rank of several holds all weights."""
        return self.shard_size == 1 == self.context_parallel == self.parts and not self.offload

    @property
    def parts(self) -> int:
        """Ranks that hold the parts of a layer: its experts, or slices of its matrices."""
        return self.expert_parallel * self.tensor_parallel

    def contradictions(self, run: RunConfig) -> Rules:
        ranks, size, contexts = run.ranks, self.shard_size, self.context_parallel
        splits = f"sharding.context_parallel is {contexts}"
        experts, tensor = self.expert_parallel, self.tensor_parallel
        shares = f"sharding.expert_parallel is {experts}" if experts > 1 else f"sharding.tensor_parallel is {tensor}"
        lora = run.model.lora
        return [
            (self.offload and run.model.device == "cpu", ON_CPU.format("sharding.offload")),
            (
                ranks > 1 and isinstance(size, int) and ranks % size,
                f"sharding.shard_size is {size}, which does not divide the {ranks} processes of pools.train; give a "
                "divisor, or null to shard over all ranks",
            ),
            (
                run.quantized is None and ranks % contexts,
                f"{splits}, which does not divide the {ranks} processes of pools.train; give a divisor, or remove it",
            ),
            (
                contexts > 1 and getattr(run.trainer, "layout", None) == "padded",
                f"{splits}, but trainer.layout is padded, and ranks split packed rows alone; leave one of them out",
            ),
            (
                contexts * tensor > 1 and getattr(run.algorithm.needs(), "reward_gradients", False),
                f"{splits if contexts > 1 else shares}, but {run.algorithm.name} follows gradients of rewards through "
                "the steps of sampling, of which each rank would have a part only; set it to 1",
            ),
            (
                run.quantized is None and ranks % self.parts,
                f"{shares}, which does not divide the {ranks} processes of pools.train; give a divisor, or remove it",
            ),
            (
                isinstance(size, int) and size > self.parts and size % self.parts,
                f"{shares}, which does not divide sharding.shard_size={size}; set one to a multiple of the other",
            ),
            (experts > 1 and run.task == "text-to-image", f"{shares}, which is for language models; remove it"),
            *(
                (self.parts > 1 and there, f"{shares}, but {what}, beside which layers can't be split; remove one")
                for there, what in (
                    (contexts > 1, f"sharding.context_parallel is {contexts}"),
                    (self.offload, "sharding.offload is true"),
                    (experts > 1 and tensor > 1, f"sharding.tensor_parallel is {tensor}"),
                    (tensor > 1 and getattr(lora, "dora", False), "model.lora.dora is true"),
                    (tensor > 1 and getattr(lora, "modules_to_save", None), "model.lora.modules_to_save is set"),
                )
            ),
        ]
