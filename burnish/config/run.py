"""The configuration of a run: the sections that every task has, and the checks that need more than one of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from burnish.config.alarms import alarm_complaints
from burnish.config.batches import Sizes
from burnish.config.hardware import Origin
from burnish.config.memory import memory_complaints
from burnish.config.mixing import mixing_complaints
from burnish.config.placement import placement_complaints, profiler_complaints
from burnish.config.plugins import open_plugins
from burnish.config.words import Words
from burnish.options import Count, EmaOptions, OptimizerOptions, ScoringOptions, Seed, Threads
from burnish.options.alarms import AlarmOptions
from burnish.options.checkpoint import CheckpointOptions
from burnish.options.cluster import PipelineOptions, PoolsOptions, RayOptions, ShardingOptions
from burnish.options.mixing import MixingOptions
from burnish.options.profiler import ProfilerOptions
from burnish.options.trackers import TrackersOptions
from burnish.registry import known, names, options
from burnish.rl.algorithm import Algorithm
from burnish.utils.errors import ConfigError
from burnish.utils.user_code import load_object, names_code

UNVALIDATED = (
    "nothing is validated, as validation.every is null and validation.before false; set validation.every, or leave it "
    "out"
)
OF_VALIDATION = ("checkpoint.keep_best", "trackers.samples")  # read beside the section itself
# of validation, what decides that, or has rules of its own
CHECKED = tuple(f"validation.{name}" for name in ("every", "before", "save", "suite", "reference_guidance"))


@options
class RunConfig:
    """Everything that decides what a run does. A task adds its model, its data, its sampling and its validation."""

    needs: ClassVar[type]  # what ``algorithm.needs()`` gives for this task
    algorithm_kind: ClassVar[str]  # whose names ``algorithm`` and ``rewards`` choose from
    reward_kind: ClassVar[str]
    model_kind: ClassVar[str]
    model_index: ClassVar[str]  # the file that describes the directory of a model
    adapter_files: ClassVar[tuple[str, ...]]  # of an adapter, the file that describes it first
    environment_kind: ClassVar[str] = "environment"
    grouped_sections: ClassVar[tuple[str, ...]] = ("filter_groups",)  # of rollout, which compare samples of a prompt
    prompt_file: ClassVar[str]  # what holds prompts, for messages

    task: str
    """What is trained: text-to-image models that draw, or image-text-to-text models that see."""
    plugins: list[str] = Field(default_factory=list)
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
    mixing: MixingOptions = Field(default_factory=MixingOptions)
    """How several rewards become the one that is optimised."""
    rollout: Any
    """How samples are made."""
    optimizer: OptimizerOptions = Field(default_factory=OptimizerOptions)
    """AdamW and its learning rate."""
    trainer: Any
    """How a batch becomes optimizer steps."""
    ema: EmaOptions | None = None
    """Average the trained weights for validation and export; null uses the trained weights themselves."""
    validation: Any
    """Judging on held-out prompts, always with the same noise."""
    checkpoint: CheckpointOptions = Field(default_factory=CheckpointOptions)
    """What a killed run can go on from."""
    sharding: ShardingOptions = Field(default_factory=ShardingOptions)
    """How the networks lie on the ranks of a trainer of several processes."""
    scoring: ScoringOptions = Field(default_factory=ScoringOptions)
    """Where rewards are computed."""
    alarms: AlarmOptions | None = Field(default_factory=AlarmOptions)
    """When the log and the report say that something has moved that should not; null never."""
    pipeline: PipelineOptions = Field(default_factory=PipelineOptions)
    """How far sampling runs ahead of learning."""
    profiler: ProfilerOptions | None = None
    """What is recorded in every detail, in which policy updates; null records nothing."""
    trackers: TrackersOptions = Field(default_factory=TrackersOptions)
    """Services and libraries that show the run besides its own report: W&B, SwanLab, MLflow, Trackio, ClearML."""
    steps: Count = 100
    """Policy updates."""
    seed: Seed = 0
    """Seed of every random draw."""
    output_dir: str = "runs/latest"
    """Folder of the run: metrics, samples, checkpoints, report."""
    resume: str = "auto"
    """auto goes on from the newest complete checkpoint in output_dir if there is one; never starts anew and
    refuses a folder that has a run in it; a path (RUN/checkpoints/00000030) goes on from that checkpoint, and with
    another output_dir branches that run, with other options if you like; the address of checkpoint.copy_to
    (s3://BUCKET/RUN) fetches the newest copy, where it is newer than what output_dir has."""
    threads: Threads = 1
    """CPU threads of the trainer; part of what makes two runs equal bit by bit."""
    deterministic: bool = False
    """Compute on GPUs by kernels that add in one order, which is slower, so that two runs are equal bit by bit there,
    too; a warning names operations that have none. vLLM is asked for its batch-invariant kernels. CPUs need nothing."""
    runtime: Literal["local", "ray"] = "local"
    """Where the run's workers live: local is this process; ray is processes of a Ray cluster, as pools says."""
    pools: PoolsOptions = Field(default_factory=PoolsOptions)
    """Who works where, with runtime=ray."""
    ray: RayOptions = Field(default_factory=RayOptions)
    """The Ray cluster that is worked on, with runtime=ray."""
    forecast: Literal["refuse", "warn", "off"] = "refuse"
    """Memory forecast before weights are loaded, on GPUs alone (burnish plan): refuse ends a run that can't fit, with
    options that would make it fit; warn trains all the same; off forecasts nothing, and starts sooner."""
    # no option: config.yaml leaves it out, and configurations that differ in it are equal
    origin: Origin | None = dataclasses.field(default=None, repr=False, compare=False, metadata={"exclude": True})

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
    def online(self) -> bool:
        """Whether samples are made from prompts, not read from data."""
        return bool(self.algorithm.needs().data == "prompts")

    @property
    def grouped(self) -> bool:
        """Whether an update learns from rollout.n samples of a prompt: made, or taken from a data set with rewards."""
        return self.online or bool(self.algorithm.needs().data == "scored")

    @property
    def validates(self) -> bool:
        """Whether held-out prompts are evaluated at all: before training, or after updates."""
        return bool(self.validation.before) or self.validation.every is not None

    @property
    def scored(self) -> bool:
        """Whether samples are scored by rewards, in training or in validation."""
        return True

    @property
    def devices(self) -> int:
        """Processes that learn or sample, by which throughput is divided."""
        if self.runtime == "local":
            return 1
        return self.pools.train.size + (self.pools.rollout.size if self.pools.rollout is not None else 0)

    @property
    def samples_from(self) -> str:
        """Which options that number comes from, for messages."""
        raise NotImplementedError

    @property
    def rows_per_group(self) -> int:
        """Samples of an update that credit puts into one row of a batch, which no mini-batch parts."""
        return 1

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
        complaints = [
            *self._groups(), *self.sampling_complaints(), *self._steps(), *self._choices(), *self._endless(),
            *self._mixing(),
            *mixing_complaints(self), *alarm_complaints(self),
            *placement_complaints(self, given),
            *memory_complaints(self),
            *profiler_complaints(self, given),
            *self.unread(given),
        ]  # fmt: skip
        if complaints:
            raise ConfigError(complaints)

    @property
    def prompt_files(self) -> dict[str, str | list[str]]:
        """Files of prompts or records, by the options that name them."""
        files = {"data.train_files": self.data.train_files, "data.val_files": self.data.val_files}
        return {option: named for option, named in files.items() if named is not None}

    @property
    def auxiliary(self) -> tuple[str, Any] | None:
        """The section of what every optimizer step imitates beside, and its name; None where there is none."""
        return None

    @property
    def reference_guidance(self) -> float | None:
        """Guidance that the untrained model is evaluated with, too, before training; None does not."""
        return None

    @property
    def words(self) -> Words:
        """How to speak of what is trained."""
        raise NotImplementedError

    def batch_sizes(self) -> dict[str, Sizes]:
        """Sizes of batches that change no result, by their options."""
        raise NotImplementedError

    @property
    def sample_bytes(self) -> tuple[float, str]:
        """Bytes of what is made of a sample, at least, and the options that they come from."""
        raise NotImplementedError

    @property
    def trainer_config(self) -> RunConfig:
        """The configuration of the trainer's ranks where a pool of workers samples."""
        return self

    @property
    def sampler_config(self) -> RunConfig:
        """The configuration of those workers."""
        return self

    def check_model(self, folder: Path) -> None:
        """Refuse a model whose files are damaged, or don't fit the options; no weights are loaded.

        Raises:
            UserError: with every complaint.
        """
        raise NotImplementedError

    def user_code(self) -> dict[str, list[str]]:
        """Paths of functions of the user that the run calls, by the section that names them."""
        found = {f"rewards.{label}": reward.user_code() for label, reward in self.rewards.items()}
        if named := [path for _, path in self._code_of_data()]:
            found["data"] = named
        return found | ({} if self.mixing.path is None else {"mixing": [self.mixing.path]})

    def check_code(self) -> None:
        """Import the user's code that the run calls, before anything heavier; nothing of it is called.

        Raises:
            UserError: it can't be imported, or has parameters that nobody has values for.
        """
        for caller, paths in self.user_code().items():
            for path in paths:
                load_object(path, caller)
        for reward in self.rewards.values():
            reward.asks()

    def programs(self) -> list[str]:
        """Options besides rewards that name code and programs to run, with their values."""
        mixing = [] if self.mixing.path is None else [f"mixing.path={self.mixing.path}"]
        return [*mixing, *(f"{option}={path}" for option, path in self._code_of_data())]

    def _code_of_data(self) -> Iterator[tuple[str, str]]:
        """Code that gives records or chooses among them, by the option that names it."""
        for option, named in self.prompt_files.items():
            entries = [named] if isinstance(named, str) else named
            yield from ((option, path) for path in entries if names_code(path) and not Path(path).exists())
        if self.data.sampler is not None:
            yield "data.sampler", self.data.sampler

    def cautions(self) -> Iterator[str]:
        """Warnings about options that are obeyed, but seldom meant."""
        yield from ()

    def sampling_complaints(self) -> Iterator[str]:
        """What is wrong with how this task samples."""
        raise NotImplementedError

    def _groups(self) -> Iterator[str]:
        """What contradicts itself about the samples of a prompt that are compared, or kept together."""
        needs, name, n, mini = self.algorithm.needs(), self.algorithm.name, self.rollout.n, self.trainer.mini_batch_size
        if needs.groups and n < 2:
            yield f"rollout.n is 1; {name} compares samples of one prompt, so it must be >= 2"
        elif n < needs.samples:
            yield (
                f"rollout.n is {n}, but {name} asks what {needs.samples} samples of a prompt do together "
                "(algorithm.pass_k); raise the first, or lower the second"
            )
        if self.rollout.save is not None and not self.online:
            yield f"rollout.save is given, but {name} samples nothing to learn from here; leave it out"
        if self.validation.save is not None and not self.scored:
            yield f"validation.save is given, but {name} samples nothing; leave it out"
        if self.validation.save is not None and not self.validates:
            yield f"validation.save is given, but {UNVALIDATED}"
        if self.validation.suites and not self.scored:
            yield f"validation.suites is given, but {name} samples nothing; leave it out"
        if self.validation.suites and not self.validates:
            yield f"validation.suites is given, but {UNVALIDATED}"
        for section in self.grouped_sections:
            if getattr(self.rollout, section) is None:
                continue
            if not self.online:
                yield f"rollout.{section} is given, but {name} samples nothing here; leave it out"
            elif n < 2:
                yield f"rollout.{section} is given, but rollout.n is 1: samples of one prompt are compared; set it >= 2"
        if mini is not None and mini % self.rows_per_group:
            yield (
                f"trainer.mini_batch_size is {mini}, but {name} compares the {n} samples of a prompt (rollout.n), "
                f"which no mini-batch may split; make it a multiple of {n}, or null takes all"
            )

    def _endless(self) -> Iterator[str]:
        for label, reward in self.rewards.items():
            if reward.endless and not self.scoring.processes:
                yield (
                    f"rewards.{label}.{reward.endless} is matched for as long as it takes, and scoring.processes is 0: "
                    "in the run's own process nothing could end it; leave scoring.processes out"
                )

    def unread(self, given: Collection[str]) -> Iterator[str]:
        """Options of the command line that this run never reads."""
        if "scoring.timeout" in given and self.scoring.processes == 0:
            yield (
                "scoring.timeout is given, but scoring.processes is 0: scoring in the run's own process "
                "can't be stopped; leave it out, or set scoring.processes to 1 or more"
            )
        if "trainer.shuffle" in given and self.trainer.mini_batch_size is None:
            yield (
                "trainer.shuffle is given, but trainer.mini_batch_size is null: all samples of an update are one "
                "mini-batch; leave it out"
            )
        if "data.shuffle" in given and self.data.sampler is not None and self.data.train_max_samples is None:
            yield "data.shuffle is given, but data.sampler chooses the records; leave it out"
        if not self.validates and self.reference_guidance is None:
            for option in given:
                if option in OF_VALIDATION or (option.startswith("validation.") and not option.startswith(CHECKED)):
                    yield f"{option} is given, but {UNVALIDATED}"

    def _steps(self) -> Iterator[str]:
        size = self.trainer.mini_batch_size
        if size is not None and size > self.samples:
            yield (
                f"trainer.mini_batch_size is {size}, but an update has only {self.samples} samples "
                f"({self.samples_from}); lower it, or null takes all"
            )
        elif self.optimizer.warmup_steps >= self.optimizer_steps:
            yield (
                f"optimizer.warmup_steps is {self.optimizer.warmup_steps}, but the run has only "
                f"{self.optimizer_steps} optimizer steps: optimizer.lr is never reached; warm up for fewer"
            )

        for section, optimizer in self.optimizers.items():
            decays = optimizer.schedule != "constant" and optimizer.schedule_updates is not None
            if decays and (optimizer.schedule_updates or 0) < self.steps:
                yield (
                    f"{section}.schedule_updates is {optimizer.schedule_updates}, but steps is {self.steps}: the "
                    f"learning rate is {optimizer.min_lr:g} from there on; raise it, or lower steps"
                )

    def _mixing(self) -> Iterator[str]:
        """What contradicts itself about lists of data."""
        files, mix = self.data.train_files, self.data.mix
        entries = [files] if isinstance(files, str) else files
        if mix is not None and (len(mix) != len(entries) or len(mix) < 2):
            yield (
                f"data.mix has {len(mix)} weights, but data.train_files has {len(entries)} entries; give one for each "
                "of several, or leave data.mix out"
            )

    def _choices(self) -> Iterator[str]:
        if self.checkpoint.export == "lora" and self.model.lora is None:
            yield "checkpoint.export is lora, but model.lora is null: there is no adapter; set checkpoint.export=merged"
        counting = [label for label, reward in self.rewards.items() if reward.counts]
        if len(counting) == 1 and self.algorithm.needs().each_reward:
            yield (
                f"algorithm.advantage_aggregation is each, but {counting[0]} is the only reward with a weight: "
                "there is nothing to sum; leave it out"
            )
        if self.scored and not counting:
            watched = f"only {', '.join(self.rewards)} with weight 0, which watches" if self.rewards else "none"
            yield (
                f"rewards has {watched}; at least one needs a weight other than 0: rewards.NAME.weight=1, "
                f"where NAME is one of {', '.join(names(self.reward_kind))}"
            )
        if self.model.family != "auto" and not known(self.model_kind, self.model.family):
            families = ", ".join(["auto", *names(self.model_kind)])
            yield f"model.family is {self.model.family!r}; leave it out, or give one of {families}"
