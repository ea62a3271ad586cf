"""Sections that both halves share, and types of numeric options with their ranges."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field

from burnish.registry import Choice, MayChange, ReadIf, chosen_part, options
from burnish.utils.addresses import address_complaint
from burnish.utils.terminal import counted

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

MOST = 10**9  # upper bound of counts
LARGEST = 1e12  # upper bound of floats: products of a few such numbers are finite in float32
SMALLEST = 1e-30  # smallest non-zero float: products of smaller ones underflow in float32
LONGEST = 2e6  # seconds, 23 days: timeouts are 32-bit milliseconds
COLDEST = 1e-3  # lowest temperature: logits divided by less overflow

Rules = list[tuple[Any, str]]  # what is wrong with a section if the first is true, and a message about it
ON_CPU = "{} is true, but model.device is cpu, where all memory is; remove it"

ALWAYS = ReadIf("")  # in place of what the section is read for
SCORED = ReadIf("scored", why="{run.algorithm.name} samples nothing")  # that rewards could score
SAMPLED = ReadIf("online", why="{run.algorithm.name} samples nothing to learn from here")
ON_RAY = ReadIf("runtime", "ray", why="runtime is local, which is a single process; add runtime=ray")
UNVALIDATED = "nothing is validated, as validation.every is null and validation.before false; set validation.every"
VALIDATED = ReadIf("validates", why=UNVALIDATED)
# or the untrained model is, as a baseline
EVALUATED = ReadIf(lambda section, run: run.validates or run.reference_guidance is not None, why=UNVALIDATED)


def _not_vanishing(value: float) -> float:
    if 0 < abs(value) < SMALLEST:
        raise ValueError(f"it underflows in float32; it must be >= {SMALLEST:g}, or 0 where 0 is allowed")
    return value


def _not_too_cold(value: float) -> float:
    if 0 < value < COLDEST:
        raise ValueError(f"logits would overflow; it must be >= {COLDEST:g}")
    return value


def _whole_above_one(value: float) -> float:
    if value >= 1 and value != int(value):
        raise ValueError("it must be a whole number of steps, or a fraction below 1")
    return value if 0 < value < 1 else int(value)


def _unix_seconds(moment: float | str) -> float:
    """Seconds since 1970 of a time in ISO 8601, or given as such."""
    if not isinstance(moment, str):
        return moment
    try:
        given = datetime.fromisoformat(moment)
    except ValueError:
        raise ValueError("it must be a time such as 2026-01-31T18:00:00+01:00, or Unix seconds") from None
    if given.tzinfo is None:
        raise ValueError("its time zone is missing: add Z for UTC, or an offset such as +01:00")
    return given.timestamp()


Count = Annotated[int, Field(ge=1, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]
if TYPE_CHECKING:
    Batch = Any  # of configurations that are assembled, a number
else:
    Batch = Literal["auto"] | Count
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False), AfterValidator(_not_vanishing)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False), AfterValidator(_not_vanishing)]
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False), AfterValidator(_not_vanishing)]
Rate = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False), AfterValidator(_not_vanishing)]
Seconds = Annotated[float, Field(gt=0, le=LONGEST, allow_inf_nan=False)]
Moment = Annotated[float, Field(ge=0, le=2.5e11, allow_inf_nan=False)]  # until the year 9892
Temperature = Annotated[float, Field(gt=0, le=1000), AfterValidator(_not_too_cold)]
TemperatureOrGreedy = Annotated[float, Field(ge=0, le=1000), AfterValidator(_not_too_cold)]
Several = Annotated[int, Field(ge=2, le=MOST)]
Guidance = Annotated[float, Field(ge=1, le=1000)]  # classifier-free; 1 is none
SomeGuidance = Annotated[float, Field(gt=1, le=1000)]
Solver = Literal["euler", "heun", "dpm2m"]  # of denoising steps without noise
DenoisingSteps = Annotated[int, Field(ge=1, le=1000)]  # as many levels of noise as networks are trained on
Pixels = Annotated[int, Field(ge=1, le=2**15)]
Tokens = Annotated[int, Field(ge=1, le=2**22)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]


# what a rejection looks at: an estimate of the KL of each action, or their sum, mean or largest along a sample
Rule = Literal[
    "token_k1", "token_k2", "token_k3",
    "seq_sum_k1", "seq_sum_k2", "seq_sum_k3",
    "seq_mean_k1", "seq_mean_k2", "seq_mean_k3",
    "seq_max_k2", "seq_max_k3",
]  # fmt: skip


@options
class AdamWOptions:
    """AdamW with a constant learning rate, of a network that an algorithm trains beside the policy."""

    lr: Rate = 3e-4
    """Peak learning rate."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Decay rates of the first and second moment."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""

    def contradictions(self, run: RunConfig) -> Rules:
        shrinks = self.lr * self.weight_decay
        return [(
            shrinks >= 1,
            f"lr x weight_decay is {shrinks:g}; it must be below 1, since every step shrinks the weights by that "
            "fraction; lower weight_decay",
        )]  # fmt: skip


@options
class OptimizerOptions(AdamWOptions):
    """The optimizer and its learning rate schedule."""

    name: Annotated[Any, Choice("optimizer", bare=True)] = "adamw"
    """adamw; adamw_8bit keeps its moments in 8 bits, a quarter of their memory (bitsandbytes); muon steps along
    orthogonalised momentum for matrices, at AdamW's scale, and takes AdamW for embeddings, heads and the rest. Or
    another registered optimizer: its name, or {name: NAME} with its options."""
    min_lr: Annotated[NonNegative, ReadIf("decays", why="schedule is constant")] = 0.0
    """linear, cosine: learning rate that the decay ends at."""
    momentum: Annotated[BelowOne, ReadIf("name", "muon")] = 0.95
    """muon: decay rate of its momentum (Nesterov)."""
    eps: Positive = 1e-8
    """Added to the denominator."""
    schedule: Annotated[Any, Choice("learning rate", bare=True)] = "constant"
    """Learning rate after the warm-up: constant, or a decay to min_lr at the last update, linear or cosine. Or another
    registered learning rate: its name, or {name: NAME} with its options."""
    schedule_updates: Annotated[Count | None, MayChange(), ReadIf("has_length", why="schedule is constant")] = None
    """linear, cosine, warmup_steps below 1: policy updates after which the decay is over; null uses steps. To extend a
    run with a decaying learning rate, set steps and this; it continues with the learning rate of a run of that
    length."""
    warmup_steps: Annotated[NonNegative, AfterValidator(_whole_above_one)] = 0
    """Optimizer steps of linear warm-up, N: the first has lr / N, the N-th lr; below 1 a fraction of those of the run,
    or of schedule_updates."""
    max_grad_norm: Positive | None = 1.0
    """Clip the gradient norm to this; null never clips."""

    offload: bool = False
    """Keep the optimizer's states in CPU memory and step there: a third to a half of the memory of trained weights, for
    a slower step. sharding.offload keeps them there with the weights."""

    def contradictions(self, run: RunConfig) -> Rules:
        section = next((name for name, optimizer in run.optimizers.items() if optimizer is self), None)
        if section is None:  # of a network that this run has not
            return []
        steps, updates, ranks, optimizer = run.optimizer_steps, self.schedule_updates, run.ranks, self.optimizer
        # quantized: every process holds all weights, as one does
        packed, total = run.quantized is not None, run.schedule_steps(self)
        return [
            *super().contradictions(run),
            (
                self.offload and self.name == "adamw_8bit",
                "offload is true and name is adamw_8bit, whose kernels need a GPU; leave one of them out",
            ),
            (
                self.min_lr >= self.lr,
                f"min_lr is {self.min_lr:g} and lr is {self.lr:g}: there is no decay; lower min_lr",
            ),
            (
                self.warmup_steps >= steps,
                f"{section}.warmup_steps is {self.warmup_steps}, but the run has only "
                f"{counted(steps, 'optimizer steps')}: {section}.lr is never reached; warm up for fewer",
            ),
            (
                0 < self.warmup_steps < 1 and self.warmup_steps * total < 1,
                f"{section}.warmup_steps is {self.warmup_steps} of {counted(total, 'optimizer steps')}, which is less "
                "than one: nothing would be warmed up; give a number of steps, or 0",
            ),
            (
                self.decays and (updates or run.steps) < run.steps,
                f"{section}.schedule_updates is {updates}, but steps is {run.steps}: the learning rate is "
                f"{self.min_lr:g} from there on; raise it, or lower steps",
            ),
            (
                ranks > 1 and not optimizer.sharded and not packed,
                f"{section}.name is {optimizer.name}, but the {ranks} processes of pools.train hold weights in "
                f"shards, which it doesn't step; set {section}.name=adamw, whose states are shared out",
            ),
            (
                run.sharding.offload and self.name != "adamw" and not packed,
                f"{section}.name is {optimizer.name}, but sharding.offload keeps every weight in CPU memory as FSDP "
                f"does, which it can't step; set {section}.name=adamw, or leave sharding.offload out",
            ),
            (
                self.offload and ranks > 1 and not packed,
                f"{section}.offload is true, but the {ranks} processes of pools.train shard the states; set "
                "sharding.offload=true, which keeps shards on the CPU with their weights",
            ),
            (
                self.offload and run.sharding.offload,
                f"{section}.offload and sharding.offload are true, and the second keeps the optimizer's states in CPU "
                f"memory, too; leave {section}.offload out",
            ),
            (self.offload and run.model.device == "cpu", ON_CPU.format(f"{section}.offload")),
        ]

    @property
    def has_length(self) -> bool:
        """Whether the learning rate of a step depends on how many there are."""
        return self.decays or 0 < self.warmup_steps < 1

    @property
    def decays(self) -> bool:
        """Whether the learning rate moves after the warm-up."""
        return bool(self.rate.moves)

    @property
    def optimizer(self) -> Any:
        """What steps, with its options."""
        return chosen_part("optimizer", self.name)

    @property
    def rate(self) -> Any:
        """The learning rate after the warm-up, with its options."""
        return chosen_part("learning rate", self.schedule)


@options
class StepOptions:
    """Optimizer steps of an update, for both tasks."""

    mini_batch_size: Count | None = None
    """Samples per optimizer step; null uses all samples of the update (one step, strictly on-policy)."""
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Passes over the samples of one update."""
    shuffle: Annotated[bool, ReadIf("mini_batch_size")] = True
    """Draw anew for every pass which samples make a mini-batch; false takes them in order, prompt by prompt."""
    max_skipped_updates: Annotated[Whole, MayChange()] = 3
    """Consecutive optimizer steps with a non-finite loss or gradient, or policy updates without training signal because
    rewards are missing, that are skipped before the run stops; ten times as many where all rewards are present but
    equal."""
    walltime: Annotated[Annotated[Moment | str, AfterValidator(_unix_seconds)] | None, MayChange()] = None
    """Time at which this (spot) machine will be reclaimed, or the job ends: ISO 8601 with a time zone,
    2026-01-31T18:00:00+01:00, or Unix seconds. The run saves and stops before. null reads the environment variables
    that Slurm and clouds set."""
    grace_period: Annotated[NonNegative, MayChange()] = 0.0
    """Seconds before walltime at which the run has stopped, in addition to the time of a checkpoint."""


@options
class SupervisedOptions:
    """Auxiliary supervised loss (PTX): every optimizer step also trains on these examples, whatever the algorithm."""

    train_files: str | list[str]
    """Examples that are imitated, read with the keys of the data section: images with prompts, as sft reads them, or
    records with responses."""
    coef: Positive = 0.1
    """Weight of their loss: of flow matching, or their negative log-likelihood, a mean over response tokens."""
    batch_size: Count = 8
    """Examples per optimizer step; images each at one noise level (logit-normal)."""


@options
class EmaOptions:
    """Exponential moving average (EMA) of the trained weights, for validation and export."""

    decay: BelowOne = 0.9
    """EMA decay per optimizer step after warm-up."""
    kind: Literal["power", "constant", "linear", "piecewise_linear", "cosine", "warmup_cosine"] = "power"
    """Decay at optimizer step n: power: (1 + n) / (warm_up + n), as in flow_grpo; constant: decay at once; linear: from
    initial over warm_up steps; cosine: from initial along half a cosine over steps; warmup_cosine: up to initial over
    warm_up steps, then half a cosine until steps; piecewise_linear: n / 1000. All but power are Flow-Factory's."""
    initial: Annotated[BelowOne, ReadIf("kind", "linear", "cosine", "warmup_cosine")] = 0.0
    """linear, cosine, warmup_cosine: see kind."""
    warm_up: Annotated[Count, ReadIf("kind", "power", "linear", "warmup_cosine")] = 10
    """power, linear, warmup_cosine: see kind."""
    steps: Annotated[Count, ReadIf("kind", "cosine", "warmup_cosine")] = 1000
    """cosine, warmup_cosine: see kind."""
    offload: Annotated[bool, MayChange()] = False
    """Keep the average in CPU memory, 4 bytes per trained weight, which is updated there after every optimizer step."""

    def contradictions(self, run: RunConfig) -> Rules:
        return [
            (
                self.kind == "warmup_cosine" and self.steps <= self.warm_up,
                f"ema.steps is {self.steps}, but ema.warm_up alone takes {self.warm_up}; raise ema.steps",
            ),
            (self.offload and run.model.device == "cpu", ON_CPU.format("ema.offload")),
            (
                self.offload and run.model.device != "cpu" and run.sharding.offload,
                "ema.offload and sharding.offload are true, and the second keeps the average in CPU memory, too; leave "
                "ema.offload out",
            ),
        ]


@options
class ScoringOptions:
    """How rewards are computed."""

    processes: Annotated[int, Field(ge=0, le=1024)] = 1
    """Processes that score while others sample, and share the samples; rewards with weights have one more per device.
    0 scores in the process that samples: a reward that ends it (os._exit, a crash) ends the run with its exit code."""
    timeout: Annotated[Seconds, ReadIf("processes")] = 300.0
    """Seconds that a reward may take per request, all tries included; after that its values are missing."""
    probe: bool = True
    """Score synthetic samples of the first prompts before training starts, and refuse a reward that fails."""


@options
class SaveOptions:
    """Keep training samples as files in the run's folder, with everything that is known of them."""

    every: Count = 10
    """Policy updates between those whose samples are kept, beginning with the first."""
    prompts: Count = 8
    """Prompts of such an update whose samples are kept, all samples of each."""


@options
class ValidationSaveOptions(SaveOptions):
    """Keep samples of validations as files in the run's folder, with everything that is known of them."""

    every: Count = 1
    """Validations after updates that this divides are kept, the one before training among them."""
    prompts: Count = 64
    """Prompts whose samples are kept, the first ones of the data, all samples of each."""


@options
class CommonValidationOptions:
    """Validation on held-out prompts, always with the same random numbers."""

    every: Annotated[Whole | None, MayChange(), ALWAYS] = 10
    """Policy updates between validations, and always after the last one; 0 validates after the last alone, null after
    none."""
    before: Annotated[bool, ALWAYS] = True
    """Also validate before training, which is what later validations are compared with."""
    max_prompts: Annotated[Count | None, ALWAYS, EVALUATED] = None
    """Use only the first N prompts; null uses all."""
    suites: Annotated[list[Annotated[str, Field(min_length=1)]], MayChange(), VALIDATED] = Field(default_factory=list)
    """Suites that every validation runs, too: names (burnish eval --list), or paths of .yaml files."""
    suite_prompts: Annotated[Count | None, MayChange(), ReadIf("suites")] = 32
    """Prompts of each suite that are used, always the same ones; null takes all."""
    save: Annotated[ValidationSaveOptions | None, MayChange(), VALIDATED] = None
    """Keep samples of validations as files, with every field of their records; null keeps the few that reports show."""


Level = Literal[
    "missing_rewards", "constant_reward", "saturation", "group_collapse", "ratio", "mismatch", "clip_fraction", "kl",
    "stale_samples", "velocity", "entropy_collapse", "entropy_growth", "variety_collapse", "gradient",
    "unfamiliar_form", "forecast", "fp8",
]  # fmt: skip


LEVELS_OF: dict[str, frozenset[Level]] = {  # alarms of metrics that one task alone has
    "image-text-to-text": frozenset(["entropy_collapse", "entropy_growth", "unfamiliar_form"]),
    "text-to-image": frozenset(["velocity", "variety_collapse", "forecast", "fp8"]),
    "text-to-image-tokens": frozenset(["entropy_collapse", "entropy_growth", "variety_collapse"]),
}


# in this order, where several act at once
AlarmAction = Literal["stop", "raise_kl", "pause_reward", "rewind", "exact_sampling"]
REWINDABLE = 3  # checkpoints that a rewind needs: one before the drift, one within it, and that of an interruption


@options
class AlarmOptions:
    """When a run says that something has moved that it should not."""

    limits: dict[Level, NonNegative] = Field(default_factory=dict)
    """Other limits of single metrics, by the alarm's name: {clip_fraction: 0.9}."""
    off: list[str] = Field(default_factory=list)
    """Names of alarms that are never raised, of watched statistics or of metrics: [latent_norm, gradient]."""
    on: dict[str, AlarmAction] = Field(default_factory=dict)
    """What an alarm does, by its name: {dark_share: raise_kl}. raise_kl holds the samples beyond its band to the
    reference ten times as strongly, or all samples where it has no band. pause_reward trains on without the reward that
    makes most of the differences. rewind goes back to the checkpoint before the drift and on with half the
    learning rate, three times at most. exact_sampling ends rollout.cache_interval and rollout.fp8, as forecast and fp8
    do unless they are named here. stop saves a checkpoint and ends the run. The others only report."""

    def contradictions(self, run: RunConfig) -> Rules:
        elsewhere = frozenset().union(*LEVELS_OF.values()) - LEVELS_OF[run.task]
        levels = sorted({*get_args(Level)} - elsewhere)
        rewards = [*run.rewards, *(f"{label}_collapse" for label in run.rewards)]
        names = sorted([*levels, *run.watched, "reward_dominance", "mode_collapse", *rewards])
        chosen = [("limits", name, levels) for name in self.limits] + [("off", name, names) for name in self.off]
        chosen += [("on", name, names) for name in self.on]
        return [
            *(
                (why, f"alarms.on.{name} is {action}, but {why}")
                for name, action in self.on.items()
                for why in self._obstacles(action, run)
            ),
            *(
                (name in self.off, f"alarms.on has {name}, which alarms.off never raises; leave one of them out")
                for name in self.on
            ),
            *(
                (
                    name not in known,
                    f"alarms.{option} has {name}, which no alarm of this run is called; there are {', '.join(known)}",
                )
                for option, name, known in chosen
            ),
        ]

    def _obstacles(self, action: AlarmAction, run: RunConfig) -> list[str]:
        """Why an action can't act in this run."""
        algorithm, needs = run.algorithm, run.algorithm.needs()
        kept, counting = run.checkpoint.keep_last, [one for one in run.rewards.values() if one.counts]
        obstacles: dict[AlarmAction, Rules] = {
            "raise_kl": [
                (
                    not algorithm.kl_option,
                    f"{algorithm.name} has no KL to the reference here: set its weight, algorithm.kl_coef or "
                    "algorithm.kl",
                ),
                (
                    algorithm.kl_option == "kl.coef" and vars(algorithm)["kl"].controller == "adaptive",
                    "algorithm.kl.controller is adaptive, which chooses the weight itself: lower algorithm.kl.target",
                ),
            ],
            "pause_reward": [
                (
                    len(counting) < 2 + needs.each_reward,
                    f"{len(counting)} rewards count, of which enough to learn from have to be left: give another a "
                    "weight",
                ),
                (
                    getattr(needs, "reward_gradients", False),
                    f"{algorithm.name} follows gradients of all rewards that count: choose another action",
                ),
                (
                    run.mixing.rule != "sum",
                    "mixing is not a sum of rewards, of which one could be left out: choose another action",
                ),
            ],
            "rewind": [
                (
                    kept < REWINDABLE,
                    f"checkpoint.keep_last is {kept}: one from before the drift has to be kept, so set it >= "
                    f"{REWINDABLE}",
                ),
                (
                    run.checkpoint.copy_to is not None,
                    "checkpoint.copy_to keeps copies of what is taken back: leave one of them out",
                ),
            ],
            "exact_sampling": [
                (
                    vars(run.rollout).get("cache_interval", 1) == 1 and not vars(run.rollout).get("fp8"),
                    "every step is exact here: set rollout.cache_interval or rollout.fp8, or choose another action",
                )
            ],
        }
        return [why for is_wrong, why in obstacles.get(action, []) if is_wrong]


Address = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]+$")]


@options
class CheckpointOptions:
    """Checkpoints, from which a killed run resumes."""

    every: Count = 10
    """Policy updates between checkpoints; one is always written at the end and when a signal stops the run."""
    keep_last: Count = 2
    """Newest N checkpoints are kept."""
    keep_best: Annotated[bool, EVALUATED] = True
    """Also keep the checkpoint with the best validation reward."""
    max_gb: Positive | None = None
    """Keep fewer, the newest first, where those that are kept take more than this many GB (10^9 bytes) together. The
    newest and, with keep_best, the best are always kept."""
    asynchronous: bool = False
    """Write in the background from a copy in CPU memory; a checkpoint still appears only when it is complete. An error
    is raised after the next policy update, or at the end of the run."""
    export: Literal["lora", "merged"] | None = None
    """Also write the weights of every checkpoint as diffusers, transformers and peft load them, to
    output_dir/exported: the adapter, or all weights (merged). They go when their checkpoint does. A process beside the
    run does it, with a copy of the model in CPU memory; if it fails, the run goes on."""
    copy_to: Address | None = None
    """Address of a folder that gets a verified copy of every checkpoint, and keeps it: s3://, gs://, hdfs://, file://
    or another that fsspec knows, with credentials from the environment. A process beside the run does it; if it fails,
    the run goes on. resume=ADDRESS goes on from there."""
    wait: Annotated[
        NonNegative,
        ReadIf(
            lambda section, run: section.export or section.copy_to, why="never read when export and copy_to are null"
        ),
    ] = 600.0
    """Seconds at the end of a run, or a stop, in which export and copy_to may be finished; 10 at most if it fails."""

    def contradictions(self, run: RunConfig) -> Rules:
        complaint = "" if self.copy_to is None else address_complaint(self.copy_to)
        return [
            (complaint, f"checkpoint.copy_to is {self.copy_to}, {complaint}"),
            (
                self.export == "lora" and run.model.lora is None,
                "checkpoint.export is lora, but model.lora is null: there is no adapter; set checkpoint.export=merged",
            ),
        ]


Role = Literal["trainer", "rollout", "reward", "controller"]
PROFILED: tuple[Role, ...] = ("trainer", "rollout")


@options
class ProfilerOptions:
    """Which policy updates are profiled, and how."""

    steps: Annotated[list[Count], Field(min_length=1)]
    """Policy updates to profile, counted from 1."""
    tool: Literal["torch", "memory", "nsys"] = "torch"
    """torch: PyTorch profiler trace; memory: CUDA memory snapshot; nsys: ranges for Nsight Systems. memory and nsys
    need a GPU."""
    roles: Annotated[list[Role], ON_RAY] = Field(default_factory=lambda: list(PROFILED), min_length=1)
    """Processes to profile with runtime=ray; a local run profiles its single process."""
    ranks: Annotated[Annotated[list[Whole], Field(min_length=1)] | None, ON_RAY] = None
    """Ranks of each role to profile, counted from 0; null is all."""
    contents: Annotated[list[Literal["shapes", "stack", "memory"]], ReadIf("tool", "torch")] = Field(
        default_factory=list
    )
    """torch: also record shapes of inputs, Python stacks (traces become large), allocations."""

    def contradictions(self, run: RunConfig) -> Rules:
        sizes = {name: pool.size for name, pool in run.pools.by_name().items()}
        sizes |= {"trainer": sizes.pop("train"), "controller": 1}
        most = max(sizes.get(role, 0) for role in self.roles)
        return [
            (
                self.tool != "torch" and run.model.device == "cpu",
                f"profiler.tool is {self.tool}, which needs a GPU, but model.device is cpu; set profiler.tool=torch",
            ),
            (
                max(self.steps) > run.steps,
                f"profiler.steps has {max(self.steps)}, but the run has only {counted(run.steps, 'updates')} (steps)",
            ),
            (
                self.tool == "memory" and "controller" in self.roles,
                "profiler.roles has controller, which uses no GPU memory to profile with tool=memory; remove it",
            ),
            *(
                (
                    run.runtime == "ray" and role in self.roles and role not in sizes and not by_trainer,
                    f"profiler.roles has {role}, but there is no pool of that name; remove it, or set pools.{role}",
                )
                for role, by_trainer in (("rollout", "trainer" in self.roles), ("reward", False))
            ),
            (
                run.runtime == "ray" and max(self.ranks or [0]) >= most > 0,
                f"profiler.ranks has {max(self.ranks or [0])}, but no pool of profiler.roles has more than "
                f"{counted(most, 'workers')}, counted from 0; lower it",
            ),
            (
                run.runtime == "ray" and "reward" in self.roles and self.tool == "torch" and run.scoring.processes,
                "profiler.roles has reward, but rewards are scored in subprocesses of the reward workers, which are "
                "not profiled; set scoring.processes=0, or remove it",
            ),
        ]


@options
class ServiceOptions:
    """What a reward service takes, and how much at once."""

    batch_size: Count = 64
    """Samples that are scored together, at most."""
    window: NonNegative = 0.01
    """Seconds that a request waits for others to be scored with; 0 takes what is there."""
    queue: Count = 1024
    """Samples that may wait or be scored; a request beyond that is answered with 503 and Retry-After."""
    max_body_mb: Positive = 64.0
    """Size of a request."""
    max_pixels: Annotated[int, Field(ge=1, le=10**9)] = 2**24
    """Pixels of an image, or of a frame."""
    read_timeout: Seconds = 30.0
    """Seconds for a client to send its request."""
    max_connections: Count = 1024
    """Connections at once; further ones are answered with 503."""
