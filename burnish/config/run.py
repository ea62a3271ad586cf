"""The configuration of a run: the sections that both halves have, and what follows from several of them."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from burnish.config.checks import problems
from burnish.config.hardware import Origin
from burnish.config.plugins import open_plugins
from burnish.options import (
    EVALUATED,
    ON_RAY,
    SCORED,
    AlarmOptions,
    CheckpointOptions,
    Count,
    EmaOptions,
    NonNegative,
    OptimizerOptions,
    ProfilerOptions,
    Rules,
    ScoringOptions,
    Seed,
    Threads,
    Whole,
)
from burnish.options.cluster import AsyncRolloutOptions, PoolsOptions, RayOptions, ShardingOptions
from burnish.registry import MayChange, ReadIf, fields, names, options
from burnish.rewards.mixing import MixingOptions, component_names
from burnish.rl.algorithm import Algorithm
from burnish.utils.addresses import address_complaint, is_address
from burnish.utils.errors import ConfigError
from burnish.utils.user_code import load_object, names_code

if TYPE_CHECKING:
    from burnish.config.batches import Sizes
    from burnish.config.tasks import Words

SHOWN = ReadIf(
    lambda section, run: section.tensorboard or section.libraries(),
    why="never read without a tracker; set trackers.wandb={{}}",
)
LACKS = {"mlflow": ["mode"], "trackio": ["mode", "tags"]}  # options that a library has nothing for
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]


@options
class TrackerOptions:
    """How a tracker shows the run. Who you are is said by the library's own login, or variables of the environment."""

    project: Name = "burnish"
    """Project of the run; MLflow's experiment."""
    name: Name | None = None
    """Name of the run; null takes the name of output_dir."""
    tags: list[Name] = Field(default_factory=list)
    """Tags of the run."""
    mode: Literal["online", "offline"] = "online"
    """offline writes below output_dir/trackers, for the library's own command or function to send."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of what opens the run, by name: entity and group of wandb.init, workspace of swanlab.init,
    space_id of trackio.init, tracking_uri of MlflowClient, and so on."""


@options
class TrackersOptions:
    """Where else metrics, samples of validations and alarms are shown. One that fails never stops or slows the run."""

    wandb: TrackerOptions | None = None
    """Weights & Biases; null leaves it out."""
    swanlab: TrackerOptions | None = None
    """SwanLab; null leaves it out."""
    mlflow: TrackerOptions | None = None
    """MLflow: the server of MLFLOW_TRACKING_URI, or files below output_dir/trackers/mlflow; null leaves it out."""
    trackio: TrackerOptions | None = None
    """Trackio: in TRACKIO_DIR on this machine, or in a space; null leaves it out."""
    clearml: TrackerOptions | None = None
    """ClearML; null leaves it out."""
    tensorboard: bool = False
    """Also write samples of validations, and alarms, for TensorBoard, beside the curves that it always gets."""
    samples: Annotated[Whole, EVALUATED, SHOWN] = 8
    """Prompts of a validation whose first sample is shown: text, image, clip or sound."""
    wait: Annotated[NonNegative, SHOWN] = 30.0
    """Seconds at the end of a run in which trackers may send what is left; a stopped run waits 10 at most."""

    def libraries(self) -> list[str]:
        """Trackers that are asked for and that need a library of their own, by the names of both."""
        return [name for name in fields(self) if isinstance(getattr(self, name), TrackerOptions)]

    def contradictions(self, run: RunConfig) -> Rules:
        plain = TrackerOptions()
        return [
            (
                getattr(getattr(self, name), option) != getattr(plain, option),
                f"trackers.{name}.{option} is given, but {name} has no such thing; remove it",
            )
            for name in self.libraries()
            for option in LACKS.get(name, ())
        ]


@options
class RunConfig(ABC):
    """Everything that decides what a run does. A task adds its model, its data, its sampling and its validation."""

    needs: ClassVar[type]  # what ``algorithm.needs()`` gives for this task
    algorithm_kind: ClassVar[str]  # whose names ``algorithm`` and ``rewards`` choose from
    reward_kind: ClassVar[str]
    model_kind: ClassVar[str]
    model_index: ClassVar[str]  # the file that describes the directory of a model
    adapter_files: ClassVar[tuple[str, ...]]  # of an adapter, the file that describes it first
    environment_kind: ClassVar[str] = "environment"
    grouped_sections: ClassVar[tuple[str, ...]] = ("filter_groups",)  # of rollout, which compare samples of a prompt
    watched: ClassVar[tuple[str, ...]] = ()  # statistics of samples whose drift is an alarm, by its name
    prompt_file: ClassVar[str]  # what holds prompts, for messages

    task: str
    """What is trained: text-to-image models that draw, or image-text-to-text models that see."""
    plugins: Annotated[list[str], MayChange()] = Field(default_factory=list)
    """Code of yours: modules and files (my_package, path/to/file.py) that register algorithms, rewards, models and the
    like, which other options then name. They are imported, so they run, before anything else is read."""
    model: Any
    """Which network is trained, and how much of it."""
    data: Any
    """Training and validation prompts."""
    algorithm: Algorithm
    """What is learned from rewards: its name and its options."""
    rewards: dict[str, Any]
    """What a good sample is: a weighted sum of rewards, by name."""
    mixing: Annotated[MixingOptions, SCORED] = Field(default_factory=MixingOptions)
    """How several rewards become the one that is optimised."""
    rollout: Any
    """How samples are made."""
    optimizer: OptimizerOptions = Field(default_factory=OptimizerOptions)
    """AdamW and its learning rate."""
    trainer: Any
    """How a batch becomes optimizer steps."""
    ema: EmaOptions | None = None
    """Average the trained weights for validation and export; null uses the trained weights themselves."""
    supervised: Any = None
    """Examples that are imitated beside."""
    validation: Any
    """Judging on held-out prompts, always with the same noise."""
    checkpoint: Annotated[CheckpointOptions, MayChange()] = Field(default_factory=CheckpointOptions)
    """What a killed run can go on from."""
    sharding: Annotated[ShardingOptions, MayChange()] = Field(default_factory=ShardingOptions)
    """How the networks lie on the ranks of a trainer of several processes."""
    scoring: Annotated[ScoringOptions, MayChange(), SCORED] = Field(default_factory=ScoringOptions)
    """Where rewards are computed."""
    alarms: Annotated[AlarmOptions | None, MayChange()] = Field(default_factory=AlarmOptions)
    """When the log and the report say that something has moved that should not; null never."""
    async_rollout: AsyncRolloutOptions = Field(default_factory=AsyncRolloutOptions)
    """How far sampling runs ahead of learning."""
    profiler: Annotated[ProfilerOptions | None, MayChange()] = None
    """What is recorded in every detail, in which policy updates; null records nothing."""
    trackers: Annotated[TrackersOptions, MayChange()] = Field(default_factory=TrackersOptions)
    """Services and libraries that show the run besides its own report: W&B, SwanLab, MLflow, Trackio, ClearML."""
    steps: Annotated[Count, MayChange()] = 100
    """Policy updates."""
    seed: Seed = 0
    """Seed of every random draw."""
    output_dir: Annotated[str, MayChange()] = "runs/latest"
    """Folder of the run: metrics, samples, checkpoints, report."""
    resume: Annotated[str, MayChange()] = "auto"
    """auto goes on from the newest complete checkpoint in output_dir if there is one; never starts anew and
    refuses a folder that has a run in it; a path (RUN/checkpoints/00000030) goes on from that checkpoint, and with
    another output_dir branches that run, with other options if you like; the address of checkpoint.copy_to
    (s3://BUCKET/RUN) fetches the newest copy, where it is newer than what output_dir has."""
    threads: Threads = 1
    """CPU threads of the trainer; part of what makes two runs equal bit by bit."""
    deterministic: bool = False
    """Compute on GPUs by kernels that add in one order, which is slower, so that two runs are equal bit by bit there,
    too; a warning names operations that have none. vLLM is asked for its batch-invariant kernels. CPUs need nothing."""
    runtime: Annotated[Literal["local", "ray"], MayChange()] = "local"
    """Where the run's workers live: local is this process; ray is processes of a Ray cluster, as pools says."""
    pools: Annotated[PoolsOptions, MayChange(), ON_RAY] = Field(default_factory=PoolsOptions)
    """Who works where, with runtime=ray."""
    ray: Annotated[RayOptions, MayChange(), ON_RAY] = Field(default_factory=RayOptions)
    """The Ray cluster that is worked on, with runtime=ray."""
    forecast: Annotated[Literal["refuse", "warn", "off"], MayChange()] = "refuse"
    """Memory forecast before weights are loaded, on GPUs alone (burnish plan): refuse ends a run that can't fit, with
    options that would make it fit; warn trains all the same; off forecasts nothing, and starts sooner."""
    # no option: config.yaml leaves it out, and configurations that differ in it are equal
    origin: Origin = dataclasses.field(default=Origin("", ()), repr=False, compare=False, metadata={"exclude": True})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process, too, everything is there that the options name."""
        open_plugins(state["plugins"])
        vars(self).update(state)

    @property
    def batches_per_update(self) -> int:
        """Batches of data.train_batch_size prompts, or records, to a policy update."""
        return 1

    @property
    def records(self) -> int:
        """Prompts per policy update, or records of a data set of finished samples."""
        return int(self.data.train_batch_size * self.batches_per_update)

    @property
    def sampled_per_prompt(self) -> int:
        """Samples that are made of a prompt, of which some may be left out."""
        return int(self.rollout.n)

    @property
    def samples(self) -> int:
        """Samples per policy update: the rows that are learned. A pair of a data set is one."""
        return self.records * (self.rollout.n if self.grouped else 1)

    @property
    def holds(self) -> Any:
        """What training files hold: prompts, ``scored`` samples, or what else the algorithm learns from."""
        return "scored" if self.data.scores else self.algorithm.needs().data

    @property
    def online(self) -> bool:
        """Whether samples are made from prompts, not read from data."""
        return bool(self.holds == "prompts")

    @property
    def grouped(self) -> bool:
        """Whether an update learns from rollout.n samples of a prompt: made, or taken from a data set with scores."""
        return self.holds in ("prompts", "scored")

    @property
    def validates(self) -> bool:
        """Whether held-out prompts are evaluated at all: before training, or after updates."""
        return bool(self.validation.before) or self.validation.every is not None

    @property
    def scored(self) -> bool:
        """Whether samples are scored by rewards, in training or in validation."""
        return True

    @property
    def ranks(self) -> int:
        """Processes of the trainer."""
        return self.pools.train.size if self.runtime == "ray" else 1

    @property
    def quantized(self) -> str | None:
        """How the network that is trained is stored in fewer bits, so that every process holds all of it."""
        return None if self.model.quantization is None else self.model.quantization.weights

    @property
    def shardable(self) -> bool:
        """Whether ranks may hold parts of the weights."""
        return self.ranks > 1 and self.quantized is None

    @property
    def shards(self) -> bool:
        """Whether they do."""
        return self.shardable and not self.sharding.replicates

    @property
    def unsharded(self) -> str:
        """Why weights are not sharded, for messages."""
        if self.ranks > 1:
            why = "sharding.shard_size is 1" if self.shardable else f"model.quantization.weights is {self.quantized}"
            return f"{why}, so that each of the {self.ranks} processes holds all weights"
        return "runtime is local" if self.runtime == "local" else "pools.train has one process"

    @property
    def devices(self) -> int:
        """Processes that learn or sample, by which throughput is divided."""
        if self.runtime == "local":
            return 1
        return self.pools.train.size + (self.pools.rollout.size if self.pools.rollout is not None else 0)

    @property
    def samples_from(self) -> str:
        """Which options that number comes from, for messages."""
        rollouts = f" x trainer.rollouts_per_update {self.batches_per_update}" if self.batches_per_update > 1 else ""
        own = f" x rollout.n {self.rollout.n}" if self.grouped else ""
        return f"data.train_batch_size {self.data.train_batch_size}{rollouts}{own}"

    @property
    def sampled_together(self) -> int:
        """Neighbouring ranks that make the same samples, each a part of every sequence."""
        return 1

    @property
    def rows_per_group(self) -> int:
        """Samples of an update that credit puts into one row of a batch, which no mini-batch parts."""
        return self.rollout.n if self.grouped and self.algorithm.needs().atom in ("pair", "group") else 1

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the run, if no update is skipped."""
        return self.steps * self.steps_per_update

    @property
    def steps_per_update(self) -> int:
        """Optimizer steps of a policy update."""
        per_epoch = math.ceil(self.samples / (self.trainer.mini_batch_size or self.samples))
        return int(self.trainer.epochs * per_epoch)

    @property
    def optimizers(self) -> dict[str, OptimizerOptions]:
        """Optimizers, by the section that configures them."""
        return {"optimizer": self.optimizer}

    def schedule_steps(self, optimizer: OptimizerOptions) -> int:
        """Optimizer steps after which a falling learning rate is at its floor."""
        return (optimizer.schedule_updates or self.steps) * self.steps_per_update

    def check(self, given: Collection[str] = ()) -> None:
        """Refuse sections that contradict each other.

        Args:
            given: dotted options of the command line. One that this run never reads is refused; in a recipe
                it is not, since the command line may have switched off what reads it.

        Raises:
            ConfigError: with every complaint.
        """
        if not isinstance(found := self.algorithm.needs(), self.needs):
            raise ConfigError(
                f"algorithm.name is {self.algorithm.name}, whose needs() gives {type(found).__name__}, but the "
                f"algorithms of task {self.task} give {self.needs.__module__}.{self.needs.__qualname__}; set another "
                "task, or choose another algorithm"
            )
        if complaints := list(problems(self, given)):
            raise ConfigError(complaints)

    @property
    def prompt_files(self) -> dict[str, list[str]]:
        """Files of prompts or records, by the options that name them."""
        files = {"data.train_files": self.data.train_files, "data.val_files": self.data.val_files or []}
        files |= {"supervised.train_files": self.supervised.train_files} if self.supervised else {}
        return {option: [named] if isinstance(named, str) else named for option, named in files.items()}

    @property
    def reference_guidance(self) -> float | None:
        """Guidance that the untrained model is evaluated with, too, before training; None does not."""
        return None

    @property
    @abstractmethod
    def words(self) -> Words:
        """How to speak of what is trained."""

    @abstractmethod
    def batch_sizes(self) -> dict[str, Sizes]:
        """Sizes of batches that change no result, by their options."""

    @property
    def trainer_config(self) -> RunConfig:
        """The configuration of the trainer's ranks where a pool of workers samples."""
        return self

    @property
    def sampler_config(self) -> RunConfig:
        """The configuration of those workers."""
        return self

    @abstractmethod
    def check_model(self, folder: Path) -> None:
        """Refuse a model whose files are damaged, or don't fit the options; no weights are loaded.

        Raises:
            UserError: with every complaint.
        """

    def user_code(self) -> dict[str, list[str]]:
        """Paths of functions of the user that the run calls, by the section that names them."""
        files = [path for named in self.prompt_files.values() for path in named]
        data = [path for path in files if names_code(path) and not Path(path).exists()]
        found = {f"rewards.{label}": reward.user_code() for label, reward in self.rewards.items()}
        found["data"] = [*data, *([] if self.data.sampler is None else [self.data.sampler])]
        return found | {"mixing": [] if self.mixing.path is None else [self.mixing.path]}

    def check_code(self) -> None:
        """Import the user's code that the run calls, before anything heavier; nothing of it is called.

        Raises:
            UserError: it can't be imported, or has parameters that nobody has values for.
        """
        for caller, paths in self.user_code().items():
            for path in paths:
                load_object(path, caller)
        for reward in self.rewards.values():
            reward.required_fields()

    @abstractmethod
    def cautions(self) -> Iterator[str]:
        """Warnings about options that are obeyed, but seldom meant."""

    def contradictions(self, run: RunConfig) -> Rules:
        """What is wrong with options of several sections."""
        needs, name, n, mini = self.algorithm.needs(), self.algorithm.name, self.rollout.n, self.trainer.mini_batch_size
        counting = [label for label, reward in self.rewards.items() if reward.counts]
        weights = self.data.scores or {}
        compared = [key for key, weight in weights.items() if weight] if weights else counting
        columns = tuple(weights) or (component_names(self.rewards) if needs.reads else ())
        watched = f"only {', '.join(self.rewards)} with weight 0, which watches" if self.rewards else "none"
        trimmed = getattr(self.algorithm, "advantage_trimmed_ratio", 0)
        sections = [section for section in self.grouped_sections if getattr(self.rollout, section) is not None]
        elsewhere = address_complaint(self.resume) if is_address(self.resume) else ""
        return [
            (elsewhere, f"resume is {self.resume}, {elsewhere}"),
            *(
                (not paths and option != "data.val_files", f"{option} is empty; name a file")
                for option, paths in self.prompt_files.items()
            ),
            (needs.groups and n < 2, f"rollout.n is 1; {name} compares samples of one prompt, so it must be >= 2"),
            (
                0 < trimmed * n < 1,
                f"algorithm.advantage_trimmed_ratio is {trimmed:g}, which leaves out none of {n} samples (rollout.n); "
                "raise one of them, or remove it",
            ),
            (
                weights and needs.data != "prompts",
                f"data.scores is given, but {name} learns from {needs.data} here, and would not read scores; leave it "
                "out, or have the algorithm learn from rewards, with algorithm.online=true where it has that option",
            ),
            (
                weights and not any(weights.values()),
                f"data.scores has {', '.join(weights)} with weight 0, which is logged only; give one another weight",
            ),
            (
                2 <= n < needs.samples,
                f"rollout.n is {n}, but {name} asks what {needs.samples} samples of a prompt do together "
                "(algorithm.pass_k); raise the first, or lower the second",
            ),
            *(
                (
                    n < 2 and self.online,
                    f"rollout.{section} is given, but rollout.n is 1: samples of one prompt are compared; set it >= 2",
                )
                for section in sections
            ),
            (
                mini is not None and mini % self.rows_per_group,
                f"trainer.mini_batch_size is {mini}, but {name} compares the {n} samples of a prompt (rollout.n), "
                f"which no mini-batch may split; make it a multiple of {n}, or null takes all",
            ),
            (
                mini is not None and mini > self.samples,
                f"trainer.mini_batch_size is {mini}, but an update has only {self.samples} samples "
                f"({self.samples_from}); lower it, or null takes all",
            ),
            (
                len(compared) == 1 and needs.each_reward,
                f"algorithm.advantage_aggregation is each, but {', '.join(compared)} is the only reward with a weight: "
                "there is nothing to sum; remove it",
            ),
            *(
                (
                    reward not in columns,
                    f"algorithm.{part} reads the reward {reward}, but there is {', '.join(columns) or 'none'}; "
                    f"watch it by rewards.{reward}.weight=0, or have {part} read another",
                )
                for part, read in needs.reads.items()
                for reward in read
            ),
            *(
                (
                    reward.endless and not self.scoring.processes,
                    f"rewards.{label}.{reward.endless} is matched for as long as it takes, and scoring.processes is 0: "
                    "in the run's own process nothing could end it; leave scoring.processes out",
                )
                for label, reward in self.rewards.items()
            ),
            (
                self.scored and not counting,
                f"rewards has {watched}; at least one needs a weight other than 0: rewards.NAME.weight=1, "
                f"where NAME is one of {', '.join(names(self.reward_kind))}",
            ),
        ]
