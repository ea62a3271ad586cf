"""A run's objects, built from its configuration: what train, eval, sample and export have in common."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import deepcopy
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from burnish.config import RunConfig
from burnish.data.pixels import check_media
from burnish.data.stream import Stream, limited
from burnish.data.values import check_keys
from burnish.evaluation.suite import suites_of
from burnish.metrics import Stopwatch
from burnish.rewards.mixing import check_mixing
from burnish.rewards.normalising import Normaliser, restore, saved
from burnish.rewards.scoring import Scorer, probe
from burnish.rl.algorithm import Metrics
from burnish.rollout.saved import made, plain
from burnish.rollout.sources import OfflineSource, OnlineSource, PromptSchedule, Replay, RolloutRequest, Stop
from burnish.tasks.evaluate import Evaluation
from burnish.tasks.sample_files import SampleFiles
from burnish.training.flop_counter import device_peak
from burnish.training.optimizer import Ema, ParameterGroup
from burnish.training.profiling import PhaseMemory
from burnish.training.ranks import SINGLE_RANK, Ranks, group_of_one
from burnish.training.roles import Publisher
from burnish.training.trainer import AuxiliaryLoss, Trainer, steps_of_an_update
from burnish.types.media import Media
from burnish.types.prompt import Prompts
from burnish.utils.allocator import grow_segments, keep_freed_memory
from burnish.utils.errors import UserError
from burnish.utils.hub import model_folder
from burnish.utils.paths import KEPT, VALIDATED
from burnish.utils.random import in_one_order
from burnish.utils.reading import understood

log = logging.getLogger(__name__)

T = TypeVar("T")


class Assembly:
    """Everything between a configuration and the loop, built when first used. A task adds its own parts.

    Networks are loaded by the first use of ``roles``, ``engine``, ``workers`` or ``identity``; prompts, rewards and
    checks of data need none.
    """

    config: Any  # the task's own class of configuration
    engine: Any  # samples
    evaluation: type[Evaluation]
    suite_runner: type[Evaluation]  # of suites, also where a validation is of judgements
    finished: Any  # data to learn from as the model has it, where nothing is sampled
    library: str  # that loads what is exported
    records: Any  # of the data set, where nothing is sampled
    rollout_worker: Any  # samples and scores in this process
    outline: Any  # the model without memory: its names, its shapes, and what reads prompts
    load_roles: Callable[..., Any]  # the networks, or those of a model that is given
    match_layers: Callable[[Any], None]  # refuses options about layers that an outline lacks, but those of adapters
    prepare: Callable[[list[Any], int], Any]  # some of the records as the model has them, for a policy update
    read: Callable[[Any], Prompts]  # prompts from files, checked by the rewards
    unfit: Callable[[int, int], str]  # why the model can't take an image of this width and height; "" if it can
    media: Callable[[], Iterator[tuple[str, Media]]]  # images and videos of the data, each with where it is named
    dummy_sample: Callable[[], Any]  # a placeholder sample, to try the rewards on
    trial: Callable[[], None]  # samples once, so that options that the network can't work with fail before training
    weight_files: Callable[[], tuple[str, list[Path]]]  # kind of the model, and files of its untrained weights
    save: Callable[[Path, dict[str, Tensor]], None]  # writes the complete model with these weights, as its library does
    loading_lines: Callable[[Path, Path | None], list[str]]  # Python that loads what was exported, and an adapter
    measures_prompts = False  # whether only the model's processor can tell which prompts are short enough
    reads_ahead = False  # whether other threads read what prompts show before it is needed
    has_separate_engine = False  # whether the engine has weights of its own, so that these stay sharded

    def __init__(
        self,
        config: RunConfig,
        ranks: Ranks = SINGLE_RANK,
        *,
        trains: bool = False,
        only_samples: bool = False,
        scorer: Scorer | None = None,
    ) -> None:
        """See ``burnish.tasks.assemble``."""
        self.config, self.ranks, self.trains, self.only_samples = config, ranks, trains, only_samples
        torch.set_num_threads(config.threads)
        keep_freed_memory()
        grow_segments()
        self.watch, self.memory = Stopwatch(), PhaseMemory()
        self.watch.memory = self.memory.during
        needs: Any = config.algorithm.needs()
        self.needs = needs.to_sample() if only_samples else needs
        self.stop = Stop()
        if scorer is not None:
            self.scorer = scorer
        self.tell: Callable[[int, int], None] = lambda done, of: None  # how many samples of a validation are there
        self._until_closed = ExitStack()
        if config.deterministic:
            self._until_closed.enter_context(in_one_order())

    @cached_property
    def train_prompts(self) -> Prompts:
        """Training prompts."""
        return Prompts.of(self.limited(self.read(self.config.data.train_files)))

    def limited(self, items: Sequence[T]) -> Sequence[T]:
        """Those of all training prompts or records that the run takes."""
        data = self.config.data
        return limited(items, data.train_max_samples, seed=self.config.seed, shuffle=data.shuffle)

    def stream(self, items: Sequence[Any], parts: Iterable[int]) -> Stream[Any]:
        """Training prompts or records in the order that the run takes them in.

        Args:
            items: all of them.
            parts: the entry of data.train_files that each is of.
        """
        data = self.config.data
        return Stream(
            items, data.train_batch_size, seed=self.config.seed, shuffle=data.shuffle, sampler=data.sampler,
            mix=None if data.mix is None else (list(parts), data.mix),
        )  # fmt: skip

    @cached_property
    def val_prompts(self) -> Prompts:
        """Held-out prompts; the training prompts where there are no others."""
        files = self.config.data.val_files
        prompts = self.read(files) if files else self.train_prompts
        return Prompts(prompts.rows[: self.config.validation.max_prompts])

    @cached_property
    def learnable_prompts(self) -> Prompts:
        """Training prompts that are short enough."""
        return self.train_prompts

    @property
    def all_records(self) -> Sequence[Any]:
        """Training prompts or records, those included that turn out to be too long."""
        return self.train_prompts

    @cached_property
    def scorer(self) -> Scorer:
        """Scores samples with the run's rewards."""
        config = self.config
        return Scorer(config.rewards, config.scoring, config.mixing, around=self.stop.waiting)

    @cached_property
    def normaliser(self) -> Normaliser | None:
        """Running statistics of the rewards, if they are normalised."""
        mixing = self.config.mixing
        return None if mixing.normalise is None else Normaliser(self.config.rewards, mixing)

    @cached_property
    def roles(self) -> Any:
        """The networks."""
        roles = self.load_roles()
        roles.memory = self.config.algorithm.make_memory()
        peak = device_peak(roles.device, roles.model.compute) if self.trains else None
        if peak is not None:
            roles.measure(peak)
        if self.sharded:
            if self.ranks.size == 1:
                self._until_closed.enter_context(group_of_one())
            roles.shard(self.ranks, self.config.sharding)
        elif self.ranks.size > 1:
            roles.copied_on(self.ranks)
        return roles

    @property
    def odd_sizes(self) -> Mapping[str, tuple[int, int]]:
        """Heights and widths of samples that a model may refuse to draw, by the section that has them."""
        return {}

    @property
    def sharded(self) -> bool:
        """Whether FSDP holds the networks: in shards on several ranks, or a single one's in CPU memory."""
        if self.ranks.size > 1:
            return self.config.quantized is None and not self.config.sharding.replicates
        return self.trains and bool(self.config.sharding.offload)

    @property
    def sampling_ranks(self) -> Ranks:
        """Ranks that share out what is sampled."""
        return self.ranks.rows if self.config.sampled_together > 1 else self.ranks

    @cached_property
    def ema(self) -> Ema | None:
        """The running average of the trained weights."""
        options = self.config.ema
        return Ema(self.roles.parameters(), **asdict(options)) if options else None

    @cached_property
    def groups(self) -> list[ParameterGroup]:
        """Parameters that are trained, with their optimizers, the actor's first."""
        config = self.config
        steps = config.schedule_steps(config.optimizer)
        return [ParameterGroup("actor", self.roles.parameters(), config.optimizer, total_steps=steps)]

    @cached_property
    def workers(self) -> Trainer:
        """The networks behind the verbs of the loop."""
        config = self.config
        return Trainer(
            self.roles, config.algorithm, self.groups,
            options=steps_of_an_update(config), ema=self.ema, seed=config.seed, watch=self.watch,
            auxiliary=self.auxiliary, publisher=self.publisher, ranks=self.ranks,
        )  # fmt: skip

    @property
    def publisher(self) -> Publisher | None:
        """The engine, where it has to be told of new weights."""
        return None

    @property
    def auxiliary(self) -> AuxiliaryLoss | None:
        """A loss that every optimizer step adds to the algorithm's."""
        return None

    @cached_property
    def source(self) -> OnlineSource | OfflineSource:
        """Where batches come from."""
        config = self.config
        if config.online:
            return OnlineSource(self.prompt_schedule, self.rollout_worker, self.normaliser)
        records = self.stream(self.records, (one.prompt.part for one in self.records))
        return OfflineSource(records, self.prepare, batches=config.batches_per_update, watch=self.watch)

    @cached_property
    def prompt_schedule(self) -> PromptSchedule:
        """Which samples are requested for each update, if the run samples."""
        config, prompts = self.config, self.learnable_prompts
        filtering = config.rollout.filter_groups
        return PromptSchedule(
            stream=self.stream(prompts, (prompt.part for prompt in prompts)),
            n=config.sampled_per_prompt,
            rollouts=config.batches_per_update,
            filtering=filtering,
            replay=Replay(filtering.replay_buffer, config.seed) if filtering and filtering.replay_buffer else None,
            tells=self.reads_ahead,
        )

    def generate(self, request: RolloutRequest | None) -> Any:
        """Samples of this rank's own chunk, if there is one; None without. Ranks call it together: the weights that
        sample are gathered for that long, unless an engine has its own."""
        with nullcontext() if self.has_separate_engine else self.roles.gathered():
            return None if request is None else self.rollout_worker.generate(request)

    def evaluate(self, target: Path | None, *, n: int, guidance: float | None = None) -> Metrics:
        """Sample and score held-out prompts; see ``Evaluation``. Ranks call it together."""
        return self.evaluation(self)(target, n=n, guidance=guidance)

    @cached_property
    def sample_files(self) -> SampleFiles | None:
        """Where samples of training are kept, if they are."""
        options = self.config.rollout.save
        return None if options is None else SampleFiles(Path(self.config.output_dir) / KEPT, options)

    @cached_property
    def validation_files(self) -> SampleFiles | None:
        """Where samples of validations are kept, if they are."""
        options = self.config.validation.save
        folder = Path(self.config.output_dir) / VALIDATED
        return None if options is None else SampleFiles(folder, options, "validation.save", first=0)

    @cached_property
    def suites(self) -> list[Evaluation]:
        """What a validation runs beside its own prompts."""
        return [self.suite_runner(self, suite) for suite in suites_of(self.config)]

    @property
    def model_folder(self) -> Path:
        """The directory of the untrained model."""
        return model_folder(self.config.model.path, index=self.config.model_index)

    @cached_property
    def identity(self) -> dict[str, str]:
        """What a checkpoint must match to be loaded."""
        model, files = self.weight_files()
        shapes = {name: list(value.shape) for name, value in self.roles.parameters().items()}
        digest = hashlib.sha256()
        for file in files:
            with file.open("rb") as opened:
                # the head of a safetensors file names every tensor; hashing gigabytes at each start would not pay
                digest.update(f"{file.name} {file.stat().st_size}".encode() + opened.read(1 << 20))
        return {
            "model": model,
            "weights": digest.hexdigest()[:16],
            "trained_parameters": hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()[:16],
            "algorithm": self.config.algorithm.name,
        }

    def check_data(self) -> None:
        """Find errors in data, before any weights are loaded."""
        check_mixing(self.config.rewards, self.config.mixing, self.train_prompts + self.val_prompts)
        count, batch = len(self.all_records), self.config.data.train_batch_size
        if count < batch:
            log.warning(
                "data.train_batch_size is %d, but there are only %d records: a batch has each of them %.3g times; "
                "lower it, or give more records", batch, count, batch / count,
            )  # fmt: skip
        if self.config.online and self.config.data.train_max_samples is None:
            check_keys(self.train_prompts, self.config.data)
        if self.config.data.sampler is not None:
            self.stream(self.all_records, ()).next_batch()  # the user's sampler chooses once, which is forgotten
        for runner in self.suites:
            runner.check()
        check_media(self.media(), self.unfit)

    def probe(self) -> None:
        """Have the rewards score made-up samples of real prompts, in the processes that will score what is sampled.

        Raises:
            UserError: one of them fails.
        """
        prompts = self.train_prompts + self.val_prompts if self.config.online else self.val_prompts
        timeout = self.config.scoring.timeout
        probe(self.scorer, prompts, self.dummy_sample(), timeout=timeout, check_cancelled=self.stop.check)

    def check(self) -> None:
        """Find what only the loaded model can tell, before a run has left anything behind."""
        _ = self.engine, self.workers, self.source
        if self.ranks.size == 1 and not self.has_separate_engine:
            with understood(f"model.path is {self.config.model.path}, whose parts don't work together"):
                self.trial()

    def close(self) -> None:
        """End the processes that this one has started, and its process group."""
        for runner in vars(self).get("suites", ()):
            runner.close()
        self._until_closed.close()

    def state_dict(self) -> dict[str, Any]:
        return self.workers.state_dict() | {"source": plain(self.source.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self.source.load_state_dict(made(state.pop("source")))
        self.workers.load_state_dict(state)

    def weights(self) -> dict[str, Any]:
        """What sampling and export need of a checkpoint."""
        return {
            "roles": self.roles.state_dict(), "source": saved(self.normaliser),
            "ema": None if self.ema is None else self.ema.state_dict(),
        }  # fmt: skip

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load these; no optimizer is built."""
        self.roles.load_state_dict(state["roles"])
        restore(state["source"], self.normaliser)
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])

    def trained_weights(self) -> AbstractContextManager[None]:
        """The weights that are evaluated and exported: their average where one is kept."""
        return nullcontext() if self.ema is None else self.ema.applied()

    def save_adapter(self, target: Path) -> None:
        """Write the trained adapter alone, as peft loads it."""
        self.roles.model.save_lora(target, "policy")


def check_layers(assembly: Assembly) -> None:
    """Make the networks without memory, by their configuration files, and do to them what the options name layers for.

    Adapters, modules trained in full, frozen and excluded layers, and an adapter to go on from: the same code matches
    them here that does so in the run.

    Args:
        assembly: of the run; stays as it is.

    Raises:
        UserError: an option names layers that the network doesn't have, or an adapter is of other ones.
    """
    config, lora = deepcopy(assembly.config), assembly.config.model.lora
    model, named = config.model, ("targets", "exclude", "path", "modules_to_save", "vision")
    chosen = [
        *(getattr(lora, name, None) for name in named), not isinstance(model.gradient_checkpointing, bool),
        model.compile, model.attention != "auto", model.quantization, assembly.odd_sizes, config.sharding.parts > 1,
        getattr(model, "vae_tiling", False), getattr(model, "freeze", ()),
    ]  # fmt: skip
    if not any(chosen):
        return
    from accelerate import init_empty_weights

    try:
        outline = assembly.outline
    except UserError as error:
        log.debug("layers are matched when weights are loaded: %s", error)  # which says what is wrong with the files
        return
    assembly.match_layers(outline)
    outline.device = torch.device("meta")
    if hasattr(config.model, "router_aux_loss_coef"):
        config.model.router_aux_loss_coef = 0.0  # how its class can be run is found out by running it
    with init_empty_weights():
        roles = type(assembly)(config).load_roles(outline)
    if config.sharding.tensor_parallel > 1:
        roles.check_plan(config.sharding.tensor_parallel)
